//! Peers that are made by hand, which say what no Linux says on request: declining with any code, nonsense, nothing.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::errno::Errno;
use smc_agent_tests::pair::{Connecting, Kind, Listener, Stream};
use smc_agent_tests::peer::{Disguise, message};
use smc_agent_tests::wait::Limit;

use crate::provoke::{DIFFERENT_NETWORK, NO_DEVICE, NO_RDMA_DEVICE};
use crate::scene::{Expected, Place, SOON, Scene, V4, can_use_smc, forms, fresh_port, kernel};

/// A code that Linux does not have, as other systems give.
const FOREIGN: u32 = 0x0301_0042;
/// Bounds a hang of a read.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a client that was made by hand says first.
enum Says {
    Nothing,
    Nonsense,
    Decline(u32),
    Proposal(Vec<u8>),
}

pub(crate) fn clients(scene: &mut Scene) -> Result<()> {
    let kinds: Vec<Kind> = forms()?.into_iter().filter_map(|(kind, blocks)| blocks.then_some(kind)).collect();
    for kind in kinds {
        let network = [127, 0, 0, 0].into();
        client(scene, kind, &Says::Nothing)?;
        client(scene, kind, &Says::Nonsense)?;
        client(scene, kind, &Says::Decline(NO_DEVICE))?;
        client(scene, kind, &Says::Decline(FOREIGN))?;
        // A host that only knows version 1 of SMC-R, for which Soft-RoCE is not enough.
        client(scene, kind, &Says::Proposal(message::proposal(network, 8)))?;
        client(scene, kind, &Says::Proposal(message::proposal([10, 0, 0, 0].into(), 8)))?;
    }
    Ok(())
}

fn client(scene: &mut Scene, kind: Kind, says: &Says) -> Result<()> {
    let address = SocketAddr::new(V4, fresh_port());
    let _disguise = Disguise::start(address.port(), 1)?;
    let listener = Listener::bind(kind, address, 1)?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let place = Place::server(stream.peer_addr()?, stream.local_addr()?);
    match says {
        Says::Nothing => {
            drop(stream);
            scene.expect_error(place, Errno::ECONNRESET)
        }
        Says::Nonsense => {
            stream.write_all(&[b'x'; 64])?;
            scene.expect_error(place, Errno::EPROTO)
        }
        Says::Decline(code) => {
            stream.write_all(&message::decline(*code))?;
            let event = scene.event_of("server", place.local)?;
            ensure!(event["code"]["name"] == "PEERDECL" && event["peer_code"]["value"] == *code, "{event:#}");
            ensure!(event["peer_code"]["name"].is_string() == (*code != FOREIGN), "{event:#}");
            goes_on(&listener, &mut stream)
        }
        Says::Proposal(proposal) => {
            let code = match (proposal[40] == 127, kernel()? >= (5, 16)) {
                (false, _) => DIFFERENT_NETWORK,
                (true, true) => NO_DEVICE,
                // Older kernels name the kind of device that was asked for.
                (true, false) => NO_RDMA_DEVICE,
            };
            stream.write_all(proposal)?;
            scene.expect_fallback(place, &Expected::code(code))?;
            // Of the other end's DECLINE only the reason is of interest here: its length depends on the kernel.
            let mut head = [0; 20];
            stream.read_exact(&mut head).context("no DECLINE came")?;
            ensure!(message::reason(&head) == Some(code), "the server said {head:02x?}");
            Ok(())
        }
    }
}

/// The connection is one of TCP, and works.
fn goes_on(listener: &Listener, stream: &mut TcpStream) -> Result<()> {
    let limit = Limit::new(SOON);
    let server = listener.accept(&limit)?;
    stream.write_all(b"on")?;
    let mut buffer = [0; 2];
    let received = loop {
        if let Some(count) = server.receive(&mut buffer)? {
            break count;
        }
        server.wait(true, false, &limit)?;
    };
    ensure!(received > 0 && b"on".starts_with(&buffer[..received]), "{buffer:?}");
    Ok(())
}

/// What a server that was made by hand answers to a proposal.
#[derive(Clone, Copy)]
enum Answers {
    Nothing,
    Nonsense,
    Decline(u32),
}

pub(crate) fn servers(scene: &mut Scene) -> Result<()> {
    for (kind, non_blocking) in forms()? {
        if can_use_smc()? {
            server(scene, kind, non_blocking, Answers::Nothing)?;
            server(scene, kind, non_blocking, Answers::Nonsense)?;
            server(scene, kind, non_blocking, Answers::Decline(FOREIGN))?;
        } else {
            // Without a device the client declines by itself, and waits for no answer.
            server(scene, kind, non_blocking, Answers::Decline(NO_DEVICE))?;
        }
    }
    Ok(())
}

fn server(scene: &mut Scene, kind: Kind, non_blocking: bool, answers: Answers) -> Result<()> {
    let address = SocketAddr::new(V4, fresh_port());
    let _disguise = Disguise::start(1, address.port())?;
    let listener = TcpListener::bind(address)?;
    let (connected, local) = std::thread::scope(|scope| -> Result<_> {
        let client = scope.spawn(|| {
            let how = Connecting { non_blocking, ..Connecting::default() };
            Stream::connect(kind, address, &how, &Limit::new(SOON))
        });
        let (mut stream, local) = listener.accept()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut proposal = [0; 20];
        stream.read_exact(&mut proposal).context("no message of the handshake came")?;
        match answers {
            Answers::Nothing => drop(stream),
            Answers::Nonsense => {
                stream.write_all(&[b'x'; 64])?;
                // The client has to find it before it finds the end.
                let _ = stream.read(&mut [0; 512]);
            }
            Answers::Decline(code) => {
                if can_use_smc()? {
                    stream.write_all(&message::decline(code))?;
                } else {
                    ensure!(message::reason(&proposal) == Some(code), "the client said {proposal:02x?}");
                }
            }
        }
        Ok((client.join().map_err(|_| anyhow!("the client panicked"))?, local))
    })?;
    let place = Place::client(local, address);
    let error = match answers {
        Answers::Nothing => Errno::ECONNRESET,
        Answers::Nonsense => Errno::EPROTO,
        Answers::Decline(code) => {
            connected.context("a client that is declined has a connection")?;
            let event = scene.event_of("client", local)?;
            if can_use_smc()? {
                ensure!(event["code"]["name"] == "PEERDECL", "{event:#}");
                ensure!(
                    event["peer_code"]["value"] == code && event["peer_code"]["name"].is_null(),
                    "{event:#}"
                );
                return Ok(());
            }
            return scene.expect_fallback(place, &Expected::code(code)).map(drop);
        }
    };
    let failed = connected.err().context("a connection without a handshake")?;
    ensure!(failed.downcast_ref() == Some(&error), "{failed:#}");
    scene.expect_error(place, error)
}
