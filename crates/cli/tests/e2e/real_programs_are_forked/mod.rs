//! Real programs are prepared under load and forked to two other nodes. Then children and parent are used, and must
//! behave like a program that was never forked.
//!
//! Servers answer requests over their network; computing programs print a result. `scripts/setup.sh` installs them.

mod computing;
mod nginx;
mod postgresql;
mod redis;
mod web;

use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("redis", redis::redis),
    Test::shared("nginx", nginx::alone),
    Test::shared("nginx_with_workers", nginx::with_workers),
    Test::shared("postgresql", postgresql::postgresql),
    Test::shared("go_http_server", web::go_server),
    Test::shared("sqlite_in_a_transaction", computing::sqlite),
    Test::shared("numpy_and_threads", computing::numpy),
    Test::shared("python_pool", computing::pool),
    Test::shared("node_timers_and_worker", computing::node),
    Test::shared("node_is_forked_again", computing::node_forked_again),
    Test::shared("bash_pipeline", computing::pipeline),
    Test::shared("bash_with_output_through_its_own_process", computing::output_through_process),
    Test::shared("bash_in_a_terminal_of_python", computing::shell_in_a_terminal),
    Test::shared("computing_programs_equal_their_parent", computing::equal_parent),
    Test::shared("openmp_in_a_parallel_region", computing::open_mp),
];
