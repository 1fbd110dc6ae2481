//! The floor of calls: two minimal programs that exchange messages over the same link. `echo.cpp` is the program.

use std::net::Ipv4Addr;
use std::path::Path;

use crate::embedded_program::{ChildProgram, EmbeddedProgram};
use crate::error::BenchError;
use crate::veth_network::VethNetwork;

/// The program.
pub(crate) const ECHO: EmbeddedProgram =
    EmbeddedProgram { name: "echo", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/echo")) };

/// Size of a message, in bytes: the size of farfork's request header.
const MESSAGE_BYTES: usize = 32;

/// The parameters of the echo.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BareEcho<'a> {
    pub(crate) program: &'a Path,
    pub(crate) connections: usize,
    pub(crate) window: usize,
    pub(crate) seconds: f64,
    /// Whether both sides poll instead of sleeping.
    pub(crate) spins: bool,
    /// Whether server and client are pinned to different CPUs by taskset(1).
    pub(crate) pinned: bool,
}

impl BareEcho<'_> {
    /// Measures the messages per second of all connections.
    pub(crate) fn measure_per_s(&self, links: &VethNetwork) -> Result<f64, BenchError> {
        let (ip, mode) = (VethNetwork::server_ip(0), if self.spins { "spin" } else { "sleep" });
        let mut server = links.server_command();
        self.pin_to_processor(&mut server, "0");
        server.arg(self.program).args(["serve", &ip.to_string(), mode]);
        let mut server = ChildProgram::start(ECHO.name, &server)?;
        let [port] = server.read_answer("listening")?;
        let mut client = ChildProgram::start(ECHO.name, &self.client_command(links, ip, port, mode))?;
        let [] = client.read_answer("ready")?;
        let [echoed, ns, wrong] = client.request(b'g', "echoed")?;
        match u64::try_from(wrong) {
            Ok(0) => Ok(echoed as f64 / (ns as f64 / 1e9)),
            wrong => Err(BenchError::WrongMemory { count: wrong.unwrap_or(u64::MAX), what: "bytes of an echo" }),
        }
    }

    fn client_command(&self, links: &VethNetwork, ip: Ipv4Addr, port: i64, mode: &str) -> std::process::Command {
        let mut client = links.client_command(0);
        self.pin_to_processor(&mut client, "1");
        client.arg(self.program).args(["drive", &ip.to_string(), &port.to_string()]);
        client.args([self.connections, self.window, MESSAGE_BYTES].map(|number| number.to_string()));
        client.args([&self.seconds.to_string(), mode]);
        client
    }

    fn pin_to_processor(&self, command: &mut std::process::Command, processor: &str) {
        if self.pinned {
            command.args(["taskset", "--cpu-list", processor]);
        }
    }
}
