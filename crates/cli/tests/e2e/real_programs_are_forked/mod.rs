//! Real programs are forked: what people run is prepared under load, forked to two other nodes, and then driven in the
//! children and in the parent. All must answer as a program does that was never forked.
//!
//! Servers are asked over their network; programs that compute say a result at their end. scripts/setup.sh installs them.

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
    Test::shared("node_on_its_second_way", computing::node_again),
    Test::shared("bash_pipeline", computing::pipeline),
    Test::shared("bash_through_a_child", computing::through_a_child),
    Test::shared("bash_in_a_terminal_of_python", computing::shell_in_a_terminal),
    Test::shared("computing_programs_look_alike", computing::look_alike),
    Test::shared("openmp_in_a_parallel_region", computing::open_mp),
];
