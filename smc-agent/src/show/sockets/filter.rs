//! Which sockets are shown.

use ipnet::IpNet;

use super::{Mode, Socket};

/// Which sockets by their state, as smcss chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// All but listening ones.
    #[default]
    NotListening,
    /// Only listening ones.
    Listening,
    /// All.
    All,
}

/// Which sockets are shown: those that satisfy each of the conditions that are given.
#[derive(Clone, Debug, Default)]
pub struct SocketFilter {
    /// By state, as smcss does; a list of `states` replaces it.
    pub selection: Selection,
    /// How their data travels; any of these.
    pub modes: Vec<Mode>,
    /// The address of either end; any of these.
    pub addresses: Vec<IpNet>,
    /// The port of either end; any of these.
    pub ports: Vec<u16>,
    /// The state, by the names that are shown; any of these.
    pub states: Vec<String>,
    /// The RDMA device, or the interface to which it is bound; any of these.
    pub devices: Vec<String>,
}

impl SocketFilter {
    /// Whether a socket is shown.
    pub fn passes(&self, socket: &Socket) -> bool {
        let listening = socket.is_listening();
        let state = if self.states.is_empty() {
            match self.selection {
                Selection::NotListening => !listening,
                Selection::Listening => listening,
                Selection::All => true,
            }
        } else {
            self.states.contains(&socket.state)
        };
        let ends = [socket.local, socket.peer];
        state
            && any_of(&self.modes, |mode| socket.mode == Some(*mode))
            && any_of(&self.ports, |port| ends.iter().any(|end| end.port == *port))
            && any_of(&self.addresses, |network| {
                let inside = |address: std::net::IpAddr| {
                    network.contains(&address) || network.contains(&address.to_canonical())
                };
                ends.iter().any(|end| end.address.is_some_and(inside))
            })
            && any_of(&self.devices, |device| {
                socket.interface.as_ref() == Some(device)
                    || socket.link.as_ref().is_some_and(|link| link.device == *device)
            })
    }
}

fn any_of<T>(wanted: &[T], is: impl FnMut(&T) -> bool) -> bool {
    wanted.is_empty() || wanted.iter().any(is)
}
