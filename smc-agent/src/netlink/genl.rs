//! Generic netlink: families found by name, commands numbered within a family.

use nix::errno::Errno;

use super::error::{Error, Result};
use super::socket::{Protocol, Socket};
use super::wire::{Attributes, Message, Request};

/// `GENL_ID_CTRL` (`include/uapi/linux/genetlink.h`): the family that knows the other families.
const CONTROLLER: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`, u16.
const FAMILY_ID: u16 = 1;
/// `CTRL_ATTR_OPS`: a nest for each command, numbered.
const OPERATIONS: u16 = 6;
/// `CTRL_ATTR_OP_ID`, u32.
const OPERATION_ID: u16 = 1;
/// `CTRL_ATTR_FAMILY_NAME`, text.
const FAMILY_NAME: u16 = 2;
/// `GENL_HDRLEN`: command, version, two reserved bytes.
const HEADER_LEN: usize = 4;

/// A family as its header file describes it.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The name by which the kernel finds it.
    pub name: &'static str,
    /// Its version.
    pub version: u8,
    /// What it is, in words, for errors.
    pub described: &'static str,
    /// The first kernel version with it.
    pub since: &'static str,
}

/// A command of a family.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Its number.
    pub number: u8,
    /// What it does, to complete "cannot …".
    pub what: &'static str,
    /// The first kernel version with it.
    pub since: &'static str,
}

/// A socket that speaks one family.
#[derive(Debug)]
pub struct FamilySocket {
    socket: Socket,
    id: u16,
    version: u8,
}

impl FamilySocket {
    /// Opens a socket in the current network namespace and asks for the family's number, which is assigned at run time.
    pub fn open(family: &Family) -> Result<Self> {
        let mut socket = Socket::open(Protocol::Generic)?;
        let request = request(CONTROLLER, GET_FAMILY, 2, "look up a generic netlink family");
        let mut id = None;
        let answer = socket.request(&request.text(FAMILY_NAME, family.name), |message| {
            id = family_id(message)?;
            Ok(())
        });
        match (answer, id) {
            (Ok(()), Some(id)) => Ok(Self { socket, id, version: family.version }),
            (Err(error), _) if error.errno() != Some(Errno::ENOENT) => Err(error),
            _ => Err(Error::NoFamily { described: family.described, since: family.since }),
        }
    }

    /// The numbers of the commands that the family knows on this kernel.
    pub fn commands(family: &Family) -> Result<Vec<u32>> {
        let mut socket = Socket::open(Protocol::Generic)?;
        let request = request(CONTROLLER, GET_FAMILY, 2, "look up the commands of a generic netlink family");
        let mut commands = Vec::new();
        let answer = socket.request(&request.text(FAMILY_NAME, family.name), |message| {
            commands.extend(operations(message)?);
            Ok(())
        });
        match answer {
            Err(error) if error.errno() == Some(Errno::ENOENT) => {
                Err(Error::NoFamily { described: family.described, since: family.since })
            }
            answer => answer.map(|()| commands),
        }
    }

    /// The beginning of a request; attributes can be added.
    pub fn prepare(&self, command: Command) -> Request {
        request(self.id, command.number, self.version, command.what)
    }

    /// Sends a command that has no answer but success.
    pub fn run(&mut self, command: Command, request: &Request) -> Result<()> {
        self.socket.request(request, |_| Ok(())).map_err(|error| unsupported(error, command))
    }

    /// Asks for a list; `parse` gets each entry's attributes.
    pub fn list<T>(
        &mut self,
        command: Command,
        mut parse: impl FnMut(Attributes<'_>) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let request = self.prepare(command);
        self.socket
            .list(&request, |message| parse(message.attributes(HEADER_LEN)))
            .map_err(|error| unsupported(error, command))
    }
}

fn request(family: u16, command: u8, version: u8, what: &'static str) -> Request {
    Request::new(family, what).fixed(&[command, version, 0, 0])
}

fn family_id(message: &Message<'_>) -> Result<Option<u16>> {
    message.attributes(HEADER_LEN).find(FAMILY_ID)?.map(|attribute| attribute.u16()).transpose()
}

fn operations(message: &Message<'_>) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    if let Some(nest) = message.attributes(HEADER_LEN).find(OPERATIONS)? {
        for operation in nest.nested() {
            numbers.extend(operation?.nested().find(OPERATION_ID)?.map(|id| id.u32()).transpose()?);
        }
    }
    Ok(numbers)
}

/// A command that the family does not know is EOPNOTSUPP.
fn unsupported(error: Error, command: Command) -> Error {
    if error.errno() == Some(Errno::EOPNOTSUPP) {
        Error::Unsupported { what: command.what, since: command.since }
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_number_is_found_among_others() {
        let mut payload = vec![1, 2, 0, 0];
        payload.extend([8, 0, 2, 0]);
        payload.extend(*b"SMC\0");
        payload.extend([6, 0, 1, 0, 0x22, 0x00, 0, 0]);
        let message = |payload| Message { kind: CONTROLLER, flags: 0, sequence: 0, payload };
        if cfg!(target_endian = "little") {
            assert_eq!(family_id(&message(&payload)).unwrap(), Some(0x22));
            assert_eq!(family_id(&message(&payload[..12])).unwrap(), None);
            assert!(family_id(&message(&payload[..17])).is_err());
        }
        assert_eq!(family_id(&message(&[])).unwrap(), None);
    }

    #[test]
    fn the_controller_answers_on_any_kernel() {
        let controller =
            Family { name: "nlctrl", version: 2, described: "generic netlink controller", since: "2.6.15" };
        assert_eq!(FamilySocket::open(&controller).unwrap().id, CONTROLLER);
        assert!(FamilySocket::commands(&controller).unwrap().contains(&u32::from(GET_FAMILY)));
        let missing = Family { name: "no_such_family", described: "such family", ..controller };
        let text = FamilySocket::open(&missing).unwrap_err().to_string();
        assert_eq!(text, "this kernel has no such family (needs 2.6.15; is module smc loaded?)");
    }
}
