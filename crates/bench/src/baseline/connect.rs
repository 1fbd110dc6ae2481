//! The floor of `farfork bench connect`: minimal programs that connect and accept over TCP on the same links.
//! `connect.cpp` is the program.

use crate::error::BenchError;
use crate::experiment::testbed::Testbed;
use crate::machine::program::{ConnectedPrograms, EmbeddedProgram};

/// The program.
pub(crate) const CONNECT: EmbeddedProgram =
    EmbeddedProgram { name: "connect", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/connect")) };

/// The parameters of the floor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BareConnect {
    pub(crate) clients: usize,
    /// Threads of each client.
    pub(crate) threads: usize,
    pub(crate) server_threads: usize,
    pub(crate) seconds: f64,
}

impl BareConnect {
    /// Measures the connections per second of all clients. The program is installed on all machines.
    pub(crate) fn measure_per_s(&self, testbed: &Testbed) -> Result<f64, BenchError> {
        let on = testbed.server();
        let arguments = ["serve".to_owned(), "0.0.0.0".to_owned(), self.server_threads.to_string()];
        let server = CONNECT.start(on, arguments)?;
        let mut connected = ConnectedPrograms::start(on, server, testbed.clients(self.clients), |machine, to| {
            let (ip, port) = (to.ip().to_string(), to.port().to_string());
            CONNECT.start(machine, ["drive", &ip, &port, &self.threads.to_string(), &self.seconds.to_string()])
        })?;
        connected.begin()?;
        let mut per_s = 0.0;
        for client in &mut connected.clients {
            let [connections, ns] = client.read_answer("connected")?;
            per_s += connections as f64 / (ns as f64 / 1e9);
        }
        Ok(per_s)
    }
}
