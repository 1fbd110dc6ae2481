//! End-to-end tests: the real binary, real nodes in network namespaces, real processes. They need root, start and
//! remove their own clusters, and can run next to a user's cluster.
//!
//! The name of a file is a sentence that its tests prove. `harness` has clusters, parents and seeds; `../programs` has
//! the programs that are forked. `runner` runs the tests in control groups, so that everything that they start ends
//! with them. The arguments are those of libtest, with any number of filters.
#![forbid(unsafe_code)]

mod arguments;
mod benchmarks_run;
mod check_set;
mod children_equal_their_parent;
mod children_may_be_forked_again;
mod children_may_be_limited;
mod children_may_be_paused;
mod children_may_be_untrusted;
mod children_may_choose_networks;
mod children_may_have_egress;
mod children_may_have_user_namespaces;
mod children_may_settle;
mod clusters_are_found_in_the_catalog;
mod connection_options_are_honoured;
mod container_roots_are_reused;
mod cores_are_readable;
mod daemons_and_pagers_may_die;
mod demo_runs;
mod disks_may_be_full;
mod doctor_checks_this_machine;
mod exclusive_set;
mod experiments_run_on_hosts;
mod fan_outs_begin_with_a_zygote;
mod files_and_streams;
mod files_have_contents_of_prepare;
mod fork_hazards_have_policies;
mod guide_commands_work;
mod harness;
mod inspect_compares_with_parent;
mod kernel_resources_are_restored;
mod links_may_be_cut;
mod machines_may_differ;
mod malformed_input_is_harmless;
mod many_children_of_one_seed;
mod members_are_authenticated;
mod memory_budgets_are_enforced;
mod memory_may_run_out;
mod memory_operations;
mod metrics_are_served;
mod mounts_may_not_answer;
mod namespaces_may_differ;
mod next_child_is_prestarted;
mod nodes_are_deployed_over_ssh;
mod nodes_may_be_slow;
mod nothing_is_left_behind;
mod pages_are_cached;
mod paging_survives_injected_faults;
mod parent_may_die;
mod parent_runs_on_unharmed;
mod phases_are_reported;
mod plans_of_the_guide_run;
mod plans_run_on_hosts;
mod prepare_and_drop_do_not_leak;
mod process_state_is_restored;
mod processors_may_differ;
mod programs_may_fork_themselves;
mod programs_run_in_children;
mod ps_watches_children;
mod random_calls_are_compared;
mod random_processes_are_restored;
mod real_programs_are_forked;
mod refusals_name_object_and_cause;
mod results_are_kept;
mod run_starts_parents;
mod runner;
mod runs_are_contained;
mod seeds_live_while_needed;
mod seeds_may_be_sealed;
mod strategies_fetch_as_documented;
mod test;
mod test_programs_pass_without_farfork;
mod volume_compression;
mod volume_copy_methods;
mod volume_files_are_forked;
mod volume_priority;
mod volumes_agree_in_etcd;
mod volumes_are_managed_from_any_node;
mod volumes_are_replicated;
mod volumes_are_unmounted_by_force;
mod volumes_outlive_lost_files;
mod waits_end_in_time;
mod zygotes_are_forked;
mod zygotes_are_prewarmed_speculatively;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;
use libtest_mimic::{Arguments, Trial};
use rustix::fs::Mode;

use arguments::TestArguments;
use harness::{print_error, print_line};
use runner::{JANITOR_ARGUMENT, Selection, WORKER_ARGUMENT, self_test};
use test::Test;

/// All test files. Basic functions are tested first, which makes later failures easier to understand. Short tests are
/// last, so that all lanes end at about the same time.
const TEST_FILES: &[(&str, &[Test])] = &[
    ("test_programs_pass_without_farfork", test_programs_pass_without_farfork::TESTS),
    ("children_equal_their_parent", children_equal_their_parent::TESTS),
    ("parent_runs_on_unharmed", parent_runs_on_unharmed::TESTS),
    ("waits_end_in_time", waits_end_in_time::TESTS),
    ("inspect_compares_with_parent", inspect_compares_with_parent::TESTS),
    ("kernel_resources_are_restored", kernel_resources_are_restored::TESTS),
    ("process_state_is_restored", process_state_is_restored::TESTS),
    ("run_starts_parents", run_starts_parents::TESTS),
    ("random_calls_are_compared", random_calls_are_compared::TESTS),
    ("random_processes_are_restored", random_processes_are_restored::TESTS),
    ("real_programs_are_forked", real_programs_are_forked::TESTS),
    ("memory_operations", memory_operations::TESTS),
    ("files_and_streams", files_and_streams::TESTS),
    ("files_have_contents_of_prepare", files_have_contents_of_prepare::TESTS),
    ("metrics_are_served", metrics_are_served::TESTS),
    ("benchmarks_run", benchmarks_run::TESTS),
    ("volumes_are_copied_by_each_method", volume_copy_methods::TESTS),
    ("volumes_are_compressed", volume_compression::TESTS),
    ("volumes_replicate_at_idle_priority", volume_priority::TESTS),
    ("volumes_are_managed_from_any_node", volumes_are_managed_from_any_node::TESTS),
    ("volumes_are_replicated", volumes_are_replicated::TESTS),
    ("volumes_are_unmounted_by_force", volumes_are_unmounted_by_force::TESTS),
    ("volumes_agree_in_etcd", volumes_agree_in_etcd::TESTS),
    ("clusters_are_found_in_the_catalog", clusters_are_found_in_the_catalog::TESTS),
    ("volumes_outlive_lost_files", volumes_outlive_lost_files::TESTS),
    ("volume_files_are_forked", volume_files_are_forked::TESTS),
    ("ps_watches_children", ps_watches_children::TESTS),
    ("doctor_checks_this_machine", doctor_checks_this_machine::TESTS),
    ("nodes_are_deployed_over_ssh", nodes_are_deployed_over_ssh::TESTS),
    ("refusals_name_object_and_cause", refusals_name_object_and_cause::TESTS),
    ("connection_options_are_honoured", connection_options_are_honoured::TESTS),
    ("mounts_may_not_answer", mounts_may_not_answer::TESTS),
    ("namespaces_may_differ", namespaces_may_differ::TESTS),
    ("processors_may_differ", processors_may_differ::TESTS),
    ("machines_may_differ", machines_may_differ::TESTS),
    ("fork_hazards_have_policies", fork_hazards_have_policies::TESTS),
    ("malformed_input_is_harmless", malformed_input_is_harmless::TESTS),
    ("parent_may_die", parent_may_die::TESTS),
    ("many_children_of_one_seed", many_children_of_one_seed::TESTS),
    ("results_are_kept", results_are_kept::TESTS),
    ("programs_may_fork_themselves", programs_may_fork_themselves::TESTS),
    ("phases_are_reported", phases_are_reported::TESTS),
    ("guide_commands_work", guide_commands_work::TESTS),
    ("plans_of_the_guide_run", plans_of_the_guide_run::TESTS),
    ("plans_run_on_hosts", plans_run_on_hosts::TESTS),
    ("prepare_and_drop_do_not_leak", prepare_and_drop_do_not_leak::TESTS),
    ("daemons_and_pagers_may_die", daemons_and_pagers_may_die::TESTS),
    ("demo_runs", demo_runs::TESTS),
    ("disks_may_be_full", disks_may_be_full::TESTS),
    ("links_may_be_cut", links_may_be_cut::TESTS),
    ("nodes_may_be_slow", nodes_may_be_slow::TESTS),
    ("memory_may_run_out", memory_may_run_out::TESTS),
    ("paging_survives_injected_faults", paging_survives_injected_faults::TESTS),
    ("memory_budgets_are_enforced", memory_budgets_are_enforced::TESTS),
    ("children_may_be_limited", children_may_be_limited::TESTS),
    ("children_may_be_untrusted", children_may_be_untrusted::TESTS),
    ("children_may_have_user_namespaces", children_may_have_user_namespaces::TESTS),
    ("children_may_have_egress", children_may_have_egress::TESTS),
    ("children_may_choose_networks", children_may_choose_networks::TESTS),
    ("children_may_be_paused", children_may_be_paused::TESTS),
    ("programs_run_in_children", programs_run_in_children::TESTS),
    ("zygotes_are_forked", zygotes_are_forked::TESTS),
    ("experiments_run_on_hosts", experiments_run_on_hosts::TESTS),
    ("fan_outs_begin_with_a_zygote", fan_outs_begin_with_a_zygote::TESTS),
    ("container_roots_are_reused", container_roots_are_reused::TESTS),
    ("children_may_settle", children_may_settle::TESTS),
    ("next_child_is_prestarted", next_child_is_prestarted::TESTS),
    ("zygotes_are_prewarmed_speculatively", zygotes_are_prewarmed_speculatively::TESTS),
    ("children_may_be_forked_again", children_may_be_forked_again::TESTS),
    ("pages_are_cached", pages_are_cached::TESTS),
    ("seeds_live_while_needed", seeds_live_while_needed::TESTS),
    ("seeds_may_be_sealed", seeds_may_be_sealed::TESTS),
    ("cores_are_readable", cores_are_readable::TESTS),
    ("strategies_fetch_as_documented", strategies_fetch_as_documented::TESTS),
    ("members_are_authenticated", members_are_authenticated::TESTS),
    ("runs_are_contained", runs_are_contained::TESTS),
    ("nothing_is_left_behind", nothing_is_left_behind::TESTS),
];

/// Number of lanes: tests that run at once. Each lane has its own cluster. Two CPUs are enough, because each test is
/// idle for a part of its time.
const LANES_COUNT: usize = 3;

fn main() -> ExitCode {
    close_inherited_descriptors();
    let sentences = if self_test::is_running() { self_test::SENTENCES } else { TEST_FILES };
    let own_arguments: Vec<String> = std::env::args().skip(1).collect();
    match own_arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [WORKER_ARGUMENT, socket] => return runner::run_worker(Path::new(socket), |name| find(sentences, name)),
        [JANITOR_ARGUMENT, run_name] => return runner::clean_after(run_name),
        _ => {}
    }
    let arguments = TestArguments::parse();
    let trials: Vec<Trial> = named_tests(sentences).map(|(sentence, test)| test.trial(sentence)).collect();
    if arguments.libtest.list {
        let selected = trials.into_iter().filter(|trial| arguments.selects(trial)).collect();
        return libtest_mimic::run(&Arguments { filter: None, ..arguments.libtest }, selected).exit_code();
    }
    require_root();
    // Nodes refuse directories that other users can change.
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    require_known_names();
    print_skipped_tests(&arguments);
    arguments.unmatched_filters(&trials, check_set::contains).iter().for_each(print_error);
    let lanes_count = if self_test::is_running() { 1 } else { LANES_COUNT };
    runner::run(
        select(sentences, &arguments),
        arguments.libtest.test_threads.unwrap_or(lanes_count),
        &self_test::settings(),
    )
}

/// Requires that each set names existing tests and modules. Without this check, a renamed test would silently leave its
/// set.
fn require_known_names() {
    let is_known = |name: &str| {
        named_tests(TEST_FILES).any(|(sentence, test)| name == sentence || name == test.full_name(sentence))
    };
    let unknown: Vec<_> =
        [check_set::NAMES, exclusive_set::NAMES].concat().into_iter().filter(|n| !is_known(n)).collect();
    assert!(unknown.is_empty(), "sets of tests name tests that do not exist: {unknown:?}");
}

/// Returns all tests, each with the name of its file.
fn named_tests(
    sentences: &'static [(&'static str, &'static [Test])],
) -> impl Iterator<Item = (&'static str, &'static Test)> {
    sentences.iter().flat_map(|(sentence, tests)| tests.iter().map(move |test| (*sentence, test)))
}

fn find(sentences: &'static [(&'static str, &'static [Test])], name: &str) -> Option<&'static Test> {
    named_tests(sentences).find(|(sentence, test)| test.full_name(sentence) == name).map(|(_, test)| test)
}

/// Returns the tests that the arguments and the selected set contain.
fn select(sentences: &'static [(&'static str, &'static [Test])], arguments: &TestArguments) -> Vec<Selection> {
    let has_long = arguments.libtest.ignored || arguments.libtest.include_ignored;
    let wanted = named_tests(sentences)
        .filter(|(sentence, test)| (has_long || !test.is_long()) && arguments.selects(&test.trial(sentence)));
    let named = wanted.map(|(sentence, test)| {
        let name = test.full_name(sentence);
        let is_exclusive = test.is_long() || exclusive_set::contains(sentence, &name);
        Selection { name, test, is_exclusive }
    });
    named.filter(|selection| check_set::contains(&selection.name)).collect()
}

/// Without root, ends the run with the reason. Tests are never skipped silently.
fn require_root() {
    if !rustix::process::geteuid().is_root() {
        print_error(
            "the end-to-end tests need root: they stop processes, and make namespaces, mounts and control groups",
        );
        std::process::exit(1);
    }
}

/// Closes descriptors that this process inherited, such as the pipe of a job server. Parents would inherit them, and
/// prepare would refuse these parents.
fn close_inherited_descriptors() {
    farfork_sys::fork::close_all_except(&[0, 1, 2]).expect("/proc/self/fd can be read");
}

/// If all tests are selected, prints the number of omitted long tests and how to run them.
fn print_skipped_tests(arguments: &TestArguments) {
    if arguments.has_no_filter() && !arguments.libtest.ignored && !arguments.libtest.include_ignored {
        let count = TEST_FILES.iter().flat_map(|(_, tests)| *tests).filter(|test| test.is_long()).count();
        print_line(format_args!("{count} long tests were omitted: `make test-long` runs them\n"));
    }
}
