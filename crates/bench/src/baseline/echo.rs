//! The floor of calls: two minimal programs that exchange messages over the same link. `echo.cpp` is the program.

use std::process::Command;

use crate::error::BenchError;
use crate::experiment::testbed::Testbed;
use crate::machine::Machine;
use crate::machine::program::{ConnectedPrograms, EmbeddedProgram, RunningProgram};

/// The program.
pub(crate) const ECHO: EmbeddedProgram =
    EmbeddedProgram { name: "echo", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/echo")) };

/// Size of a message, in bytes: the size of farfork's request header.
const MESSAGE_BYTES: usize = 32;

/// The parameters of the echo.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BareEcho {
    pub(crate) connections: usize,
    pub(crate) window: usize,
    pub(crate) seconds: f64,
    /// Whether both sides poll instead of sleeping.
    pub(crate) spins: bool,
    /// Whether server and client are pinned to different CPUs by taskset(1).
    pub(crate) pinned: bool,
}

impl BareEcho {
    /// Measures the messages per second of all connections. The program is installed on the server and the first client.
    pub(crate) fn measure_per_s(&self, testbed: &Testbed) -> Result<f64, BenchError> {
        let (on, mode) = (testbed.server(), if self.spins { "spin" } else { "sleep" });
        let server = self.start(on, "0", ["serve", &on.address().to_string(), mode])?;
        let mut connected = ConnectedPrograms::start(on, server, testbed.clients(1), |machine, to| {
            let [ip, port, seconds] = [to.ip().to_string(), to.port().to_string(), self.seconds.to_string()];
            let sizes = [self.connections, self.window, MESSAGE_BYTES].map(|number| number.to_string());
            let [connections, window, bytes] = &sizes;
            self.start(machine, "1", ["drive", &ip, &port, connections, window, bytes, &seconds, mode])
        })?;
        let [echoed, ns, wrong] = connected.clients[0].request(b'g', "echoed")?;
        match u64::try_from(wrong) {
            Ok(0) => Ok(echoed as f64 / (ns as f64 / 1e9)),
            wrong => Err(BenchError::WrongMemory { count: wrong.unwrap_or(u64::MAX), what: "bytes of an echo" }),
        }
    }

    fn start<const N: usize>(
        &self,
        machine: &dyn Machine,
        processor: &str,
        arguments: [&str; N],
    ) -> Result<RunningProgram, BenchError> {
        let program = ECHO.command(machine);
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", processor]).arg(program.get_program());
        machine.start(ECHO.name, if self.pinned { command } else { program }.args(arguments))
    }
}
