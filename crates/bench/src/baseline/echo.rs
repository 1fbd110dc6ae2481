//! The floor of calls: messages there and back over the same link, with nothing around them, by two bare programs.
//! `echo.cpp` says how.

use std::net::Ipv4Addr;
use std::path::Path;

use crate::error::BenchError;
use crate::links::Links;
use crate::program::{Image, Program};

/// The program.
pub(crate) const ECHO: Image = Image { name: "echo", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/echo")) };

/// Size of a message, in bytes: what farfork's head of a request has.
const MESSAGE_BYTES: usize = 32;

/// What goes there and back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Echo<'a> {
    pub(crate) program: &'a Path,
    pub(crate) connections: usize,
    pub(crate) window: usize,
    pub(crate) seconds: f64,
    /// Whether both sides look again instead of sleeping.
    pub(crate) spins: bool,
    /// Arguments of `taskset` for the server and for the client, if they are kept apart.
    pub(crate) pinned: bool,
}

impl Echo<'_> {
    /// Messages a second.
    pub(crate) fn per_s(&self, links: &Links) -> Result<f64, BenchError> {
        let (ip, mode) = (Links::server_ip(0), if self.spins { "spin" } else { "sleep" });
        let mut server = links.on_server();
        self.pin(&mut server, "0");
        server.arg(self.program).args(["serve", &ip.to_string(), mode]);
        let mut server = Program::start(ECHO.name, &server)?;
        let [port] = server.answer("listening")?;
        let mut client = Program::start(ECHO.name, &self.client(links, ip, port, mode))?;
        let [] = client.answer("ready")?;
        let [echoed, ns, wrong] = client.ask(b'g', "echoed")?;
        match u64::try_from(wrong) {
            Ok(0) => Ok(echoed as f64 / (ns as f64 / 1e9)),
            wrong => Err(BenchError::Wrong { wrong: wrong.unwrap_or(u64::MAX), what: "bytes of an echo" }),
        }
    }

    fn client(&self, links: &Links, ip: Ipv4Addr, port: i64, mode: &str) -> std::process::Command {
        let mut client = links.on_client(0);
        self.pin(&mut client, "1");
        client.arg(self.program).args(["drive", &ip.to_string(), &port.to_string()]);
        client.args([self.connections, self.window, MESSAGE_BYTES].map(|number| number.to_string()));
        client.args([&self.seconds.to_string(), mode]);
        client
    }

    fn pin(&self, command: &mut std::process::Command, processor: &str) {
        if self.pinned {
            command.args(["taskset", "--cpu-list", processor]);
        }
    }
}
