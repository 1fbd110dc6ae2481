//! The floor of `farfork bench connect`: minimal programs that connect and accept over TCP on the same links.
//! `connect.cpp` is the program.

use std::path::Path;

use crate::embedded_program::{ChildProgram, EmbeddedProgram};
use crate::error::BenchError;
use crate::veth_network::VethNetwork;

/// The program.
pub(crate) const CONNECT: EmbeddedProgram =
    EmbeddedProgram { name: "connect", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/connect")) };

/// The parameters of the floor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BareConnect<'a> {
    pub(crate) program: &'a Path,
    pub(crate) clients: usize,
    /// Threads of each client.
    pub(crate) threads: usize,
    pub(crate) server_threads: usize,
    pub(crate) seconds: f64,
}

impl BareConnect<'_> {
    /// Measures the connections per second of all clients.
    pub(crate) fn measure_per_s(&self, links: &VethNetwork) -> Result<f64, BenchError> {
        let mut server = links.server_command();
        server.arg(self.program).args(["serve", "0.0.0.0", &self.server_threads.to_string()]);
        let mut server = ChildProgram::start(CONNECT.name, &server)?;
        let [port] = server.read_answer("listening")?;
        let client = |number: usize| {
            let mut client = links.client_command(number);
            client.arg(self.program).args(["drive", &VethNetwork::server_ip(number).to_string(), &port.to_string()]);
            client.args([&self.threads.to_string(), &self.seconds.to_string()]);
            let mut client = ChildProgram::start(CONNECT.name, &client)?;
            let [] = client.read_answer("ready")?;
            Ok(client)
        };
        let mut clients = (0..self.clients).map(client).collect::<Result<Vec<_>, BenchError>>()?;
        clients.iter_mut().try_for_each(|client| client.send_message(b'g'))?;
        let mut per_s = 0.0;
        for client in &mut clients {
            let [connections, ns] = client.read_answer("connected")?;
            per_s += connections as f64 / (ns as f64 / 1e9);
        }
        Ok(per_s)
    }
}
