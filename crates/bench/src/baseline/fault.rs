//! The floor of a page fault: two minimal programs on the nodes' machines. One program requests each page that its
//! thread touches from the other program over the same link, and maps the page. `fault.cpp` is the program.

use std::time::Duration;

use serde::Serialize;

use crate::error::BenchError;
use crate::experiment::nodes::ClusterNode;
use crate::machine::program::{ConnectedPrograms, EmbeddedProgram};

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
pub(crate) struct BareFaults(ConnectedPrograms);

impl BareFaults {
    /// Starts both programs. The program on the second node faults; the program on the first node has the pages.
    pub(crate) fn open(nodes: &[ClusterNode], waiting: WaitMode) -> Result<Self, BenchError> {
        let mode = if waiting == WaitMode::Spin { "spin" } else { "sleep" };
        start_pair(nodes, ["serve", "drive"], &[mode]).map(Self)
    }

    /// Measures this many faults, with a pause before each.
    pub(crate) fn measure(&mut self, faults: usize, gap: Duration) -> Result<Vec<FaultTiming>, BenchError> {
        self.0.clients[0].send_text(&format!("{faults} {}\n", gap.as_micros()))?;
        let us = |ns: i64| ns as f64 / 1e3;
        let one = |_| match self.0.clients[0].read_answer("served")? {
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
pub(crate) struct BareStream(ConnectedPrograms);

impl BareStream {
    /// Starts the stream. The program on the first node sends pages; the program on the second node maps them.
    pub(crate) fn open(nodes: &[ClusterNode]) -> Result<Self, BenchError> {
        start_pair(nodes, ["send", "install"], &[]).map(Self)
    }

    /// Reads the number of pages that have been mapped so far.
    pub(crate) fn read_pages(&mut self) -> Result<u64, BenchError> {
        self.0.clients[0].send_text("\n")?;
        match self.0.clients[0].read_answer("installed")? {
            [pages, 0] => Ok(pages.unsigned_abs()),
            [_, wrong] => Err(BenchError::WrongMemory { count: wrong.unsigned_abs(), what: "pages of a bare stream" }),
        }
    }
}

/// Starts the installed program on the first node, and on the second node, where it connects to the first.
fn start_pair(nodes: &[ClusterNode], kinds: [&str; 2], further: &[&str]) -> Result<ConnectedPrograms, BenchError> {
    let on = nodes[0].machine();
    let server = FAULT.start(on, [&[kinds[0], &on.address().to_string()], further].concat())?;
    ConnectedPrograms::start(on, server, [nodes[1].machine()], |machine, to| {
        FAULT.start(machine, [&[kinds[1], &to.ip().to_string(), &to.port().to_string()], further].concat())
    })
}
