//! Tests that run alone: they keep all CPUs busy, stop or starve nodes, change a setting of the machine, or count what
//! nodes prewarm within seconds. All other tests run in lanes, because they are idle most of the time.

/// Names of modules, or of single tests.
pub(crate) const NAMES: &[&str] = &[
    "children_equal_their_parent::python_with_numpy",
    "fan_outs_begin_with_a_zygote",
    "many_children_of_one_seed",
    "memory_may_run_out",
    "next_child_is_prestarted",
    "nothing_is_left_behind",
    "parent_runs_on_unharmed",
    "prepare_and_drop_do_not_leak",
    "process_state_is_restored::huge_pages_of_a_frozen_parent",
    "process_state_is_restored::huge_pages_of_hugetlbfs",
    "process_state_is_restored::hugetlbfs_files",
    "process_state_is_restored::private_huge_pages",
    "process_state_is_restored::system_v_huge_pages",
    "random_calls_are_compared",
    "random_processes_are_restored",
    "runs_are_contained",
    "test_programs_pass_without_farfork",
    "volumes_replicate_at_idle_priority",
    "zygotes_are_forked",
    "zygotes_are_prewarmed_speculatively",
];

/// Returns whether the test `name` of the module `sentence` must run alone.
pub(crate) fn contains(sentence: &str, name: &str) -> bool {
    NAMES.iter().any(|exclusive| *exclusive == sentence || *exclusive == name)
}
