//! The floor of a page fault: a page asked for over the same link, mapped for a thread that touched it, by two bare programs
//! in the namespaces of the nodes. `fault.cpp` says how.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use farfork_cluster::local::LocalNode;
use serde::Serialize;

use crate::error::BenchError;
use crate::program::{Image, Program};

/// The program.
pub(crate) const FAULT: Image = Image { name: "fault", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/fault")) };

/// How both programs wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Waiting {
    /// They sleep.
    Sleep,
    /// They look again for a while before they do.
    Spin,
}

/// What a fault took, in µs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    /// All of it, as the thread saw it that touched the page.
    pub(crate) touch_us: f64,
    /// There and back: a request, and a page.
    pub(crate) exchange_us: f64,
    /// The kernel's copy.
    pub(crate) copy_us: f64,
}

/// A pair of programs at the ends of the link; they end with this value.
#[derive(Debug)]
pub(crate) struct BareFaults {
    driver: Program,
    /// Kept running.
    _server: Program,
}

impl BareFaults {
    /// Starts both: the second node's program faults, the first one's has the pages.
    pub(crate) fn open(program: &Path, nodes: &[LocalNode], waiting: Waiting) -> Result<Self, BenchError> {
        let (ip, mode) = (nodes[0].address.ip().to_string(), if waiting == Waiting::Spin { "spin" } else { "sleep" });
        let mut server = Program::start(FAULT.name, &on(&nodes[0], program, &["serve", &ip, mode]))?;
        let [port] = server.answer("listening")?;
        let arguments = ["drive", &ip, &port.to_string(), mode];
        let mut driver = Program::start(FAULT.name, &on(&nodes[1], program, &arguments))?;
        let [] = driver.answer("ready")?;
        Ok(Self { driver, _server: server })
    }

    /// So many faults, with a pause before each.
    pub(crate) fn serve(&mut self, faults: usize, gap: Duration) -> Result<Vec<Served>, BenchError> {
        self.driver.say(&format!("{faults} {}\n", gap.as_micros()))?;
        let us = |ns: i64| ns as f64 / 1e3;
        let one = |_| match self.driver.answer("served")? {
            [touch, exchange, copy, 0] => {
                Ok(Served { touch_us: us(touch), exchange_us: us(exchange), copy_us: us(copy) })
            }
            [.., wrong] => Err(BenchError::Wrong { wrong: wrong.unsigned_abs(), what: "pages of a bare fault" }),
        };
        (0..faults).map(one).collect()
    }
}

fn on(node: &LocalNode, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &node.netns]).arg(program).args(arguments);
    command
}
