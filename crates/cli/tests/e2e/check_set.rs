//! The end-to-end tests of `cargo xtask check`: quick tests that together execute every path of a fork once.
//! `FARFORK_TEST_SET=check` selects them.

/// Environment variable that names a set of tests. Without it, all tests are selected.
pub(crate) const SET_VARIABLE: &str = "FARFORK_TEST_SET";

/// Returns whether the selected set contains a test. `name` is `FILE::TEST`.
pub(crate) fn contains(name: &str) -> bool {
    match std::env::var(SET_VARIABLE) {
        Err(_) => true,
        Ok(set) => {
            assert_eq!(set, "check", "`check` is the only set of {SET_VARIABLE}");
            NAMES.contains(&name)
        }
    }
}

/// Tests of the set, as `FILE::TEST`.
pub(crate) const NAMES: &[&str] = &[
    "children_equal_their_parent::a_go_program",
    "children_equal_their_parent::python_with_numpy",
    "children_may_be_forked_again::a_process_that_a_child_forked_is_prepared",
    "children_may_be_limited::in_run_time",
    "children_may_be_paused::a_paused_child_makes_no_progress",
    "children_may_be_untrusted::the_file_system_is_read_only_on_request",
    "children_may_choose_networks::a_published_port_reaches_the_child",
    "children_may_have_egress::a_child_reaches_only_allowed_addresses",
    "children_may_have_user_namespaces::root_in_the_child_is_unprivileged_on_the_node",
    "children_may_settle::a_settled_child_has_every_page_of_its_seed",
    "container_roots_are_reused::only_when_the_previous_child_left_no_files",
    "cores_are_readable::readelf_and_gdb_read_a_core",
    "daemons_and_pagers_may_die::children_survive_a_killed_pager",
    "disks_may_be_full::while_children_fetch_pages",
    "files_and_streams::an_attached_child_has_the_commands_standard_streams",
    "files_have_contents_of_prepare::a_replaced_file_keeps_its_contents",
    "fork_hazards_have_policies::a_mapped_file_is_the_parents_version",
    "guide_commands_work::in_the_c_guide",
    "inspect_compares_with_parent::a_changed_field_is_reported",
    "kernel_resources_are_restored::signals",
    "kernel_resources_are_restored::tasks",
    "malformed_input_is_harmless::on_every_port",
    "memory_budgets_are_enforced::a_child_above_the_budget_is_refused",
    "memory_operations::work_in_eight_children_at_once",
    "metrics_are_served::a_fork_changes_the_counters",
    "namespaces_may_differ::a_changed_host_name_is_refused",
    "next_child_is_prestarted::a_prestarted_child_sees_the_nodes_current_files",
    "parent_may_die::during_prepare",
    "parent_runs_on_unharmed::a_cpp_program_ticks_on",
    "parent_runs_on_unharmed::waits_are_not_interrupted_by_prepares",
    "phases_are_reported::of_a_fork_on_another_node",
    "process_state_is_restored::file_locks",
    "process_state_is_restored::posix_timers",
    "programs_may_fork_themselves::the_python_package_passes_its_tests_without_a_daemon",
    "real_programs_are_forked::nginx_with_workers",
    "refusals_name_object_and_cause::an_unknown_seed_or_child",
    "results_are_kept::across_a_daemon_restart",
    "run_starts_parents::under_a_name",
    "seeds_live_while_needed::seeds_are_selected_by_labels",
    "seeds_may_be_sealed::the_image_has_the_memory_of_the_template",
    "strategies_fetch_as_documented::cow_fetches_page_by_page",
    "zygotes_are_forked::only_within_their_limit_and_for_matching_forks",
];
