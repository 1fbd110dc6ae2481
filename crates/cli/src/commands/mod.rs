//! The commands, one file each. Each file declares the arguments of a command and runs the command. The doc comments of
//! the arguments are the help text.

pub(crate) mod bench_program;
mod call_timer;
mod check;
mod cluster;
mod completions;
mod core;
mod demo;
mod doctor;
mod down;
mod drop;
mod exec;
mod exec_runner;
mod fork;
mod inspect;
mod inspect_compare;
mod kill;
mod logs;
mod man;
mod node;
mod nodes;
mod object_outcome;
mod pager;
mod pause;
mod prepare;
mod prewarm;
mod ps;
mod remote_node;
mod remote_runner;
mod rm;
mod run;
mod seeds;
mod settle;
mod stdin;
mod unpause;
mod up;
mod volume;
mod volume_service;
mod wait;

use std::process::ExitCode;

use clap::Subcommand;

use crate::GlobalArgs;
use crate::connection::{ConnectionOption, block_on};

const BENCH_HELP: &str = "\
Examples:
  farfork bench --help                      lists the benchmarks
  farfork bench fork --mib 1,64 --runs 5

Exit status: 0 measured, 1 failed, 2 wrong usage.";

const STRESS_HELP: &str = "\
Examples:
  farfork stress --help                     lists the tests
  farfork stress rpc --seconds 600

Exit status: 0 passed, 1 failed, 2 wrong usage.";

#[derive(Subcommand)]
pub(crate) enum Command {
    Up(up::Up),
    Down(down::Down),
    Cluster(cluster::ClusterArguments),
    Node(node::Node),
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    Pager(pager::Pager),
    #[command(hide = true)]
    CallTimer(call_timer::CallTimer),
    #[command(hide = true)]
    Tend(run::CollapserProcess),
    #[command(hide = true)]
    RemoteNode(remote_node::RemoteNode),
    #[command(hide = true)]
    RemoteRunner(remote_runner::RemoteRunner),
    #[command(hide = true)]
    ExecRunner(exec_runner::ExecRunner),
    Run(run::Run),
    Check(check::Check),
    Prepare(prepare::Prepare),
    Fork(fork::Fork),
    Prewarm(prewarm::Prewarm),
    Wait(wait::Wait),
    Ps(ps::Ps),
    Seeds(seeds::Seeds),
    Nodes(nodes::Nodes),
    Inspect(inspect::Inspect),
    Logs(logs::Logs),
    Exec(exec::ExecCommand),
    Kill(kill::Kill),
    Pause(pause::Pause),
    Unpause(unpause::Unpause),
    Settle(settle::Settle),
    Core(core::Core),
    Rm(rm::Rm),
    Drop(drop::DropCommand),
    Volume(volume::VolumeArguments),
    Demo(demo::Demo),
    /// Measure what farfork costs on this machine, next to a floor for each figure.
    ///
    /// The program `farfork-bench` runs the benchmarks; it is in the directory of `farfork`.
    #[command(disable_help_flag = true, after_help = BENCH_HELP)]
    Bench(bench_program::BenchProgramArguments),
    /// Put load on one part of farfork for as long as you like, and judge the outcome.
    ///
    /// The program `farfork-bench` runs the tests; it is in the directory of `farfork`.
    #[command(disable_help_flag = true, after_help = STRESS_HELP)]
    Stress(bench_program::BenchProgramArguments),
    Man(man::Man),
    Completions(completions::Completions),
}

impl Command {
    /// The options of the connection that the command uses.
    pub(crate) fn connection_options(&self) -> &'static [ConnectionOption] {
        use ConnectionOption::{Node, RunDir, Socket, Trust};
        match self {
            Command::Up(_) | Command::Down(_) | Command::Run(_) => &[RunDir],
            Command::Node(_) | Command::Pager(_) => &[RunDir, Trust],
            Command::Doctor(_) => &[Socket, RunDir],
            Command::Cluster(command) => command.connection_options(),
            Command::Volume(command) => command.connection_options(),
            Command::CallTimer(_)
            | Command::Tend(_)
            | Command::RemoteNode(_)
            | Command::RemoteRunner(_)
            | Command::ExecRunner(_)
            | Command::Demo(_)
            | Command::Bench(_)
            | Command::Stress(_)
            | Command::Man(_)
            | Command::Completions(_) => &[],
            _ => &[Socket, RunDir, Node, Trust],
        }
    }

    /// Whether the command's output is a text for another program, which has no form in JSON.
    pub(crate) fn prints_text_only(&self) -> bool {
        match self {
            Command::Man(command) => command.prints_page(),
            Command::Completions(_) | Command::Exec(_) => true,
            _ => false,
        }
    }

    /// Runs the command. Returns its exit status.
    pub(crate) fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        match self {
            Command::Up(command) => command.run(&global),
            Command::Down(command) => command.run(&global),
            Command::Cluster(command) => command.run(global),
            Command::Node(command) => command.run(&global),
            Command::Doctor(command) => block_on(command.run(global)),
            Command::Pager(command) => command.run(&global),
            Command::CallTimer(command) => command.run(),
            Command::Tend(command) => command.run(),
            Command::RemoteNode(command) => block_on(command.run()),
            Command::RemoteRunner(command) => block_on(command.run()),
            Command::ExecRunner(command) => command.run(),
            Command::Run(command) => command.run(&global),
            Command::Check(command) => block_on(command.run(global)),
            Command::Prepare(command) => block_on(command.run(global)),
            Command::Fork(command) => block_on(command.run(global)),
            Command::Prewarm(command) => block_on(command.run(global)),
            Command::Wait(command) => block_on(command.run(global)),
            Command::Ps(command) => block_on(command.run(global)),
            Command::Seeds(command) => block_on(command.run(global)),
            Command::Nodes(command) => block_on(command.run(global)),
            Command::Inspect(command) => block_on(command.run(global)),
            Command::Logs(command) => block_on(command.run(global)),
            Command::Exec(command) => block_on(command.run(global)),
            Command::Kill(command) => block_on(command.run(global)),
            Command::Pause(command) => block_on(command.run(global)),
            Command::Unpause(command) => block_on(command.run(global)),
            Command::Settle(command) => block_on(command.run(global)),
            Command::Core(command) => block_on(command.run(global)),
            Command::Rm(command) => block_on(command.run(global)),
            Command::Drop(command) => block_on(command.run(global)),
            Command::Volume(command) => command.run(&global),
            Command::Demo(command) => command.run(&global),
            Command::Bench(command) => command.run("bench", &global),
            Command::Stress(command) => command.run("stress", &global),
            Command::Man(command) => command.run(&global),
            Command::Completions(command) => command.run(),
        }
    }
}
