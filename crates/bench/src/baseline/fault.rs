//! The floor of a page fault: two minimal programs in the nodes' namespaces. One program requests each page that its
//! thread touches from the other program over the same link, and maps the page. `fault.cpp` is the program.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use farfork_cluster::local::LocalNode;
use serde::Serialize;

use crate::embedded_program::{ChildProgram, EmbeddedProgram};
use crate::error::BenchError;

/// The program.
pub(crate) const FAULT: EmbeddedProgram =
    EmbeddedProgram { name: "fault", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/fault")) };

/// How both programs wait for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WaitMode {
    /// They block in a system call.
    Sleep,
    /// They poll for 50 µs before they block.
    Spin,
}

/// The times of one fault, in µs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultTiming {
    /// The whole fault, as measured by the thread that touches the page.
    pub(crate) touch_us: f64,
    /// The exchange of a request and a page.
    pub(crate) exchange_us: f64,
    /// The copy of the page by the kernel (UFFDIO_COPY).
    pub(crate) copy_us: f64,
}

/// A pair of programs at the ends of the link. They are killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct BareFaults {
    driver: ChildProgram,
    /// Killed when this value is dropped.
    _server: ChildProgram,
}

impl BareFaults {
    /// Starts both programs. The program on the second node faults; the program on the first node has the pages.
    pub(crate) fn open(program: &Path, nodes: &[LocalNode], waiting: WaitMode) -> Result<Self, BenchError> {
        let mode = if waiting == WaitMode::Spin { "spin" } else { "sleep" };
        let [server, driver] = start_pair(program, nodes, ["serve", "drive"], &[mode])?;
        Ok(Self { driver, _server: server })
    }

    /// Measures this many faults, with a pause before each.
    pub(crate) fn measure(&mut self, faults: usize, gap: Duration) -> Result<Vec<FaultTiming>, BenchError> {
        self.driver.send_text(&format!("{faults} {}\n", gap.as_micros()))?;
        let us = |ns: i64| ns as f64 / 1e3;
        let one = |_| match self.driver.read_answer("served")? {
            [touch, exchange, copy, 0] => {
                Ok(FaultTiming { touch_us: us(touch), exchange_us: us(exchange), copy_us: us(copy) })
            }
            [.., wrong] => Err(BenchError::WrongMemory { count: wrong.unsigned_abs(), what: "pages of a bare fault" }),
        };
        (0..faults).map(one).collect()
    }
}

/// A stream of pages from the first node to the second, where a program maps the pages as they arrive. It ends when this
/// value is dropped.
#[derive(Debug)]
pub(crate) struct BareStream {
    installer: ChildProgram,
    /// Killed when this value is dropped.
    _sender: ChildProgram,
}

impl BareStream {
    /// Starts the stream. The program on the first node sends pages; the program on the second node maps them.
    pub(crate) fn open(program: &Path, nodes: &[LocalNode]) -> Result<Self, BenchError> {
        let [sender, installer] = start_pair(program, nodes, ["send", "install"], &[])?;
        Ok(Self { installer, _sender: sender })
    }

    /// Reads the number of pages that have been mapped so far.
    pub(crate) fn read_pages(&mut self) -> Result<u64, BenchError> {
        self.installer.send_text("\n")?;
        match self.installer.read_answer("installed")? {
            [pages, 0] => Ok(pages.unsigned_abs()),
            [_, wrong] => Err(BenchError::WrongMemory { count: wrong.unsigned_abs(), what: "pages of a bare stream" }),
        }
    }
}

/// Starts a program on the first node, and one on the second node that connects to it.
fn start_pair(
    program: &Path,
    nodes: &[LocalNode],
    kinds: [&str; 2],
    further: &[&str],
) -> Result<[ChildProgram; 2], BenchError> {
    let ip = nodes[0].address.ip().to_string();
    let start = |node, arguments: &[&str]| {
        ChildProgram::start(FAULT.name, &node_command(node, program, &[arguments, further].concat()))
    };
    let mut first = start(&nodes[0], &[kinds[0], &ip])?;
    let [port] = first.read_answer("listening")?;
    let mut second = start(&nodes[1], &[kinds[1], &ip, &port.to_string()])?;
    let [] = second.read_answer("ready")?;
    Ok([first, second])
}

fn node_command(node: &LocalNode, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &node.netns]).arg(program).args(arguments);
    command
}
