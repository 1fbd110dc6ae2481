//! `SUITE_ENTRIES`: the benchmarks of `farfork bench all`, with their arguments. `farfork bench all` runs and reports
//! each benchmark that is added here.

/// A benchmark of the suite.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuiteEntry {
    /// The unique name, which is also the name of the result file without `.json`.
    pub(crate) name: &'static str,
    /// The command without `farfork`, such as `bench fork`.
    pub(crate) command: &'static str,
    /// Whether the command takes `--samples`. Stress tests have their rates in the document.
    pub(crate) has_samples: bool,
    /// Arguments with `--quick`.
    pub(crate) quick: &'static str,
    /// Arguments without `--quick`.
    pub(crate) full: &'static str,
}

/// All benchmarks, in the order of the report.
#[rustfmt::skip]
pub(crate) const SUITE_ENTRIES: &[SuiteEntry] = &[
    entry("fork", "bench fork", "--within 15 --runs 3", "--runs 20"),
    entry("fork-write", "bench fork", "--write --mib 4,64,256 --within 10 --runs 3", "--write"),
    entry("fork-sequential", "bench fork", "--sequential --mib 4,64,256 --within 10 --runs 3", "--sequential"),
    entry("fork-sequential-write", "bench fork", "--sequential --write --mib 4,64,256 --within 10 --runs 3", "--sequential --write"),
    entry("strategies", "bench fork", "--mib 16 --runs 2 --within 10 --strategies cow --strategies prefetch --strategies cow,cache --strategies eager", "--mib 16,64,256 --strategies cow --strategies prefetch --strategies cow,cache --strategies eager"),
    entry("function", "bench function", "--runs 3", "--runs 10"),
    entry("peak", "bench peak", "helloworld json recognition sparse --nodes 2 --clients 2 --seconds 4 --zygotes on", ""),
    entry("warm-start", "bench warm-start", "--parallel 1,2,4,8,16,24,30,32,64 --runs 2 --seconds 0.2", "--parallel 1,2,4,8,16,24,30,32,64"),
    entry("warm-functions", "bench warm-start", "helloworld compression json pyaes chameleon image pagerank recognition --parallel 4 --runs 1 --seconds 0.3", "helloworld compression json pyaes chameleon image pagerank recognition --parallel 1,2,4,8,16,24,30,32,64 --runs 5"),
    entry("rpc", "bench rpc", "--runs 2 --client-seconds 0.3", "--runs 5"),
    entry("rpc-checksum", "bench rpc", "--checksum --threads 12 --clients 1,2,4,8,10 --runs 3 --client-seconds 0.3", "--checksum --threads 12 --clients 1,2,4,8,10 --runs 5"),
    entry("connect", "bench connect", "--runs 2 --seconds 0.2", "--runs 5 --seconds 1"),
    entry("stress-fork", "stress fork", "--like-the-document --seconds 5", "--like-the-document --seconds 60").without_samples(),
    entry("stress-functions", "stress functions", "helloworld --seconds 5", "--seconds 60").without_samples(),
    entry("stress-rpc", "stress rpc", "--clients 10 --threads 12 --seconds 5", "--clients 10 --threads 12 --seconds 60").without_samples(),
    entry("stress-rpc-checksum", "stress rpc", "--checksum --clients 10 --threads 12 --seconds 5", "--checksum --clients 10 --threads 12 --seconds 60").without_samples(),
    entry("fanout", "bench fanout", "--children 100 --runs 3", ""),
    entry("pool", "bench pool", "--runs 5", ""),
    entry("fault", "bench fault", "--runs 2 --stream-mib 1024", ""),
    entry("churn", "bench churn", "--runs 2", ""),
    entry("tree", "bench tree", "--runs 5", ""),
    entry("volume", "bench volume", "--quick --seconds 1 --period 2", ""),
];

const fn entry(name: &'static str, command: &'static str, quick: &'static str, full: &'static str) -> SuiteEntry {
    SuiteEntry { name, command, has_samples: true, quick, full }
}

/// The length of the suite's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SuiteScale {
    /// At most ten minutes and 16 GiB on two processors.
    Quick,
    /// Several times as long.
    Full,
}

impl SuiteEntry {
    const fn without_samples(self) -> Self {
        Self { has_samples: false, ..self }
    }

    /// The arguments of the benchmark's process. Paths are relative to the directory of the results.
    pub(crate) fn arguments(&self, scale: SuiteScale) -> Vec<String> {
        let options = match scale {
            SuiteScale::Quick => self.quick,
            SuiteScale::Full => self.full,
        };
        let mut arguments: Vec<String> = self.command.split(' ').map(str::to_owned).collect();
        arguments.extend(options.split_whitespace().map(str::to_owned));
        arguments.push("--json".to_owned());
        if self.has_samples {
            arguments.extend(["--samples".to_owned(), self.samples_file()]);
        }
        arguments
    }

    /// The name of the benchmark's result file.
    pub(crate) fn result_file(&self) -> String {
        format!("{}.json", self.name)
    }

    /// The name of the benchmark's file of samples.
    pub(crate) fn samples_file(&self) -> String {
        format!("{}.jsonl", self.name)
    }
}

/// The names of all benchmarks.
pub(crate) fn suite_names() -> impl Iterator<Item = &'static str> {
    SUITE_ENTRIES.iter().map(|entry| entry.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{SUITE_ENTRIES, SuiteScale, suite_names};

    #[test]
    fn names_are_unique_and_arguments_are_in_order() {
        assert_eq!(suite_names().collect::<BTreeSet<_>>().len(), SUITE_ENTRIES.len());
        let fork = SUITE_ENTRIES.iter().find(|entry| entry.name == "fork-write").unwrap();
        let arguments = fork.arguments(SuiteScale::Full);
        assert_eq!(arguments, ["bench", "fork", "--write", "--json", "--samples", "fork-write.jsonl"]);
        let stress = SUITE_ENTRIES.iter().find(|entry| entry.name == "stress-fork").unwrap();
        assert_eq!(
            stress.arguments(SuiteScale::Quick),
            ["stress", "fork", "--like-the-document", "--seconds", "5", "--json"]
        );
    }
}
