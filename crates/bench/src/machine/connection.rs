//! `ConnectedPrograms`: a server program, and the client programs that have connected to it from their machines.

use std::net::SocketAddr;

use super::Machine;
use super::program::RunningProgram;
use crate::error::BenchError;

/// A server and its clients. They are killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ConnectedPrograms {
    pub(crate) clients: Vec<RunningProgram>,
    pub(crate) server: RunningProgram,
}

impl ConnectedPrograms {
    /// Waits until a server program, which runs on the machine `on`, prints `listening PORT`. Then starts a client on each of
    /// the machines `clients`, and waits until each prints `ready`.
    ///
    /// # Errors
    /// A program cannot be started, or prints something else.
    pub(crate) fn start<'a>(
        on: &dyn Machine,
        mut server: RunningProgram,
        clients: impl IntoIterator<Item = &'a dyn Machine>,
        start_client: impl Fn(&dyn Machine, SocketAddr) -> Result<RunningProgram, BenchError>,
    ) -> Result<Self, BenchError> {
        let [port] = server.read_answer("listening")?;
        let to = SocketAddr::new(on.address(), port as u16);
        let clients = clients.into_iter().map(|machine| start_client(machine, to)?.ready());
        Ok(Self { clients: clients.collect::<Result<_, _>>()?, server })
    }

    /// Makes all clients begin at the same time.
    pub(crate) fn begin(&mut self) -> Result<(), BenchError> {
        self.clients.iter_mut().try_for_each(|client| client.send_message(b'g'))
    }
}
