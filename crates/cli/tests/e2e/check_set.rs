//! The tests of `cargo xtask check`: quick ones that together cross every path of a fork once. `FARFORK_TEST_SET=check` selects them.

/// Names a set of tests. Without it, all tests are in.
const SET_VARIABLE: &str = "FARFORK_TEST_SET";

/// Whether the set of this run has a test; `name` is `sentence::test`.
pub(crate) fn contains(name: &str) -> bool {
    match std::env::var(SET_VARIABLE) {
        Err(_) => true,
        Ok(set) => {
            assert_eq!(set, "check", "{SET_VARIABLE} knows one set");
            NAMES.contains(&name)
        }
    }
}

/// Names of the set that no test has: one that was renamed, for example.
pub(crate) fn unknown_names<'a>(all: impl Iterator<Item = String>) -> Vec<&'a str> {
    let all: Vec<String> = all.collect();
    NAMES.into_iter().filter(|name| !all.iter().any(|one| one == name)).collect()
}

const NAMES: [&str; 42] = [
    "children_are_compared::and_a_change_is_named",
    "children_are_forked_on::and_what_they_forked_is",
    "children_equal_their_parent::a_go_program",
    "children_equal_their_parent::python_with_numpy",
    "children_may_be_limited::in_time",
    "children_may_be_paused::and_stand_still",
    "children_may_be_untrusted::files_may_be_read_only",
    "children_may_call_out::only_where_it_may_a_child_gets",
    "children_may_choose_networks::ports_of_the_node_lead_to_a_child",
    "children_may_have_users::root_inside_is_nobody_outside",
    "children_may_settle::and_have_what_their_seed_has",
    "children_stand_by::with_the_nodes_files_as_they_are_now",
    "cores_are_readable::by_debuggers",
    "daemons_and_pagers_may_die::the_pager",
    "disks_may_be_full::under_children_that_page",
    "files_and_streams::standard_streams_are_the_commands_own",
    "files_are_those_of_prepare::where_they_were_replaced",
    "guides_do_what_they_say::from_within_c",
    "hazards_have_policies::a_mapped_file_is_the_parents_version",
    "hostile_bytes_are_harmless::on_every_port",
    "memory_is_admitted::to_children_up_to_their_bound",
    "memory_operations::eight_children_at_once",
    "metrics_are_served::and_a_fork_moves_them",
    "namespaces_may_differ::a_host_name_is_refused",
    "parent_may_die::during_prepare",
    "parent_runs_on_unharmed::a_cpp_program_ticks_on",
    "parent_runs_on_unharmed::waits_see_no_stop",
    "parents_may_be_run::under_a_name",
    "phases_are_told::of_a_fork_on_another_node",
    "processes_are_carried_whole::file_locks",
    "processes_are_carried_whole::posix_timers",
    "programs_may_fork_themselves::python_by_itself",
    "real_programs_are_forked::nginx_with_workers",
    "refusals_are_named::an_unknown_seed_or_child",
    "resources_are_restored::signals",
    "resources_are_restored::tasks",
    "results_are_kept::over_the_end_of_a_daemon",
    "roots_are_used_again::where_a_child_has_left_nothing",
    "seeds_live_while_needed::and_are_found_by_labels",
    "seeds_may_be_sealed::with_the_same_memory",
    "strategies_are_what_they_say::cow_fetches_page_by_page",
    "zygotes_are_forked::where_they_may_be",
];
