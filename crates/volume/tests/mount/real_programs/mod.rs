//! Third-party programs on volumes with three replicas: they write on one node, and other nodes read the data.
//! `scripts/setup.sh` installs them. Processes of this folder test the rest: many writers, and mappings.

mod archives;
mod fio;
mod lock_files;
mod many_writers;
mod mappings;
mod membership;
mod postgresql;
mod rocksdb;
mod rsync;

use crate::programs::run;

/// The tests of this folder.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("rsync_transfers_nothing_again", rsync::transfers_nothing_again),
    ("fio_verifies_what_it_wrote_on_each_node", fio::verifies_what_it_wrote_on_each_node),
    ("rocksdb_is_consistent_after_a_kill", rocksdb::is_consistent_after_a_kill),
    ("an_archive_is_extracted_on_one_node_and_compared_on_others", archives::small_archive_is_compared_on_each_node),
    ("many_writers_find_everything_acknowledged_on_each_node", many_writers::find_everything_acknowledged_on_each_node),
    ("appended_lines_are_not_divided", many_writers::appended_lines_are_not_divided),
    ("readers_follow_an_appended_log", many_writers::readers_follow_an_appended_log),
    ("a_lock_file_excludes_other_nodes", lock_files::a_lock_file_excludes_other_nodes),
    ("git_pushes_from_each_node_to_one_repository", lock_files::git_pushes_from_each_node_to_one_repository),
    ("a_mapping_and_write_change_different_pages", mappings::a_mapping_and_write_change_different_pages),
    ("a_mapping_has_what_another_node_wrote_before_open", mappings::a_mapping_has_what_another_node_wrote_before_open),
    ("nodes_change_different_pages_of_one_file", mappings::nodes_change_different_pages_of_one_file),
    ("a_truncated_file_stays_short_while_it_is_mapped", mappings::a_truncated_file_stays_short_while_it_is_mapped),
];

/// Tests of this folder that take minutes.
pub(crate) const LONG_TESTS: &[(&str, fn())] = &[
    ("postgresql_keeps_committed_transactions", postgresql::keeps_committed_transactions),
    ("fio_verifies_large_files_on_each_node", fio::verifies_large_files_on_each_node),
    ("rocksdb_is_consistent_after_many_kills", rocksdb::is_consistent_after_many_kills),
    ("archives_of_up_to_a_hundred_thousand_files", archives::large_archives_are_compared_on_each_node),
    (
        "replicas_return_while_nodes_change_the_same_names",
        membership::replicas_return_while_nodes_change_the_same_names,
    ),
    ("postgresql_continues_when_nodes_die", membership::postgresql_continues_when_nodes_die),
    (
        "many_writers_find_everything_acknowledged_after_minutes",
        many_writers::find_everything_acknowledged_after_minutes,
    ),
    ("sixteen_nodes_write_and_each_finds_everything", many_writers::sixteen_nodes_find_everything_acknowledged),
];

/// A process of this folder, with its arguments.
pub(crate) type ProcessMain = fn(&[String]);

/// Processes that tests of this folder start: the argument after `process`, and the function that it executes.
pub(crate) const PROCESSES: &[(&str, ProcessMain)] =
    &[("writer", many_writers::run_writer), ("mapping", mappings::run_mapping)];
