//! Counts a node's resources at each scrape, and reads its pager's counters.

use std::fmt;
use std::sync::{Arc, Weak};

use farfork_cluster::membership::{MemberState, MemberView};
use farfork_container::{ContainerSpec, NetworkSpec, RootSpec};
use farfork_fork::pager::{CacheStats, PagerCounters};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::children::{Child, ChildStatus};
use crate::node::Node;

/// Collects the metrics of a node, until the node is dropped.
#[derive(Debug)]
pub(super) struct NodeCollector(pub(super) Weak<Node>);

/// Name, help text, unit.
type MetricDescription = (&'static str, &'static str, Option<Unit>);

/// The value of a label, and the metric's value for it.
type LabelledValue = (&'static str, u64);

impl Collector for NodeCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(node) = self.0.upgrade() else { return Ok(()) };
        let mut metric_encoder = MetricEncoder(encoder);
        metric_encoder.encode_seeds(&node)?;
        metric_encoder.encode_children(&node)?;
        metric_encoder.encode_containers(&node)?;
        metric_encoder.encode_nodes(&node)?;
        metric_encoder.encode_memory(&node.children.pager_counters())?;
        node.pager.cache_stats().map_or(Ok(()), |cache| metric_encoder.encode_cache(&cache))
    }
}

struct MetricEncoder<'a>(DescriptorEncoder<'a>);

impl MetricEncoder<'_> {
    fn encode_seeds(&mut self, node: &Node) -> fmt::Result {
        let seeds = node.seeds.all();
        let templates = seeds.iter().filter(|seed| !seed.frozen).count();
        let memory_bytes = seeds.iter().map(|seed| seed.memory_bytes).sum();
        self.encode_gauge(("seeds", "Seeds of this node", None), to_u64(seeds.len()))?;
        self.encode_gauge(
            ("templates", "Processes that hold the memory of seeds and never run", None),
            to_u64(templates),
        )?;
        let help = "Memory with contents that this node's seeds hold for children, copied or not";
        self.encode_gauge(("seed_memory", help, Some(Unit::Bytes)), memory_bytes)
    }

    fn encode_children(&mut self, node: &Node) -> fmt::Result {
        let children = node.children.all();
        let that =
            |is: fn(&ChildStatus) -> bool| to_u64(children.iter().filter(|child| is(&child.status().borrow())).count());
        let states = [
            ("paused", that(|status| matches!(status, ChildStatus::Paused))),
            ("running", that(|status| matches!(status, ChildStatus::Running))),
            ("ended", that(|status| matches!(status, ChildStatus::Ended(_)))),
        ];
        let help = "Children of this node, including ended ones until they are removed";
        self.encode_gauges(("children", help, None), "state", &states)?;
        let is_lost = |child: &&Arc<Child>| child.is_alive() && child.memory_loss_cause().is_some();
        let help = "Children that run and cannot fetch their memory any more";
        self.encode_gauge(("children_memory_lost", help, None), to_u64(children.iter().filter(is_lost).count()))
    }

    fn encode_containers(&mut self, node: &Node) -> fmt::Result {
        let ready = |root, network| {
            to_u64(node.engine.count_ready_containers(ContainerSpec { root, network, ..ContainerSpec::default() }))
        };
        let roots =
            |network| [RootSpec::Overlay, RootSpec::Shared].map(|root| (root_label(root), ready(root, network)));
        let zygotes = node.engine.zygote_cache().counts();
        let help = "Zygotes from which further children on this node are forked";
        self.encode_gauge(("zygotes", help, None), zygotes.kept.into())?;
        self.encode_counter(
            "zygote_children",
            "Children of this node that were forked from a zygote",
            zygotes.children,
        )?;
        let help = "Children of this node that were forked from a zygote before they were requested";
        self.encode_counter("standby_children", help, zygotes.stood_by)?;
        let help = "Zygotes that were created before a child of their seed was requested";
        self.encode_counter("foretold_zygotes", help, zygotes.foretold)?;
        let help = "Zygotes that were created before a child of their seed was requested, and then used";
        self.encode_counter("foretold_zygotes_used", help, zygotes.foretold_used)?;
        let help = "Containers that are ready for further children";
        self.encode_gauges(("pool_containers", help, None), "root", &roots(NetworkSpec::Private))?;
        let help = "Containers that are ready for further children that share a network or are in the node's";
        self.encode_gauges(("pool_containers_without_network", help, None), "root", &roots(NetworkSpec::Host))
    }

    fn encode_nodes(&mut self, node: &Node) -> fmt::Result {
        let views = node.peers.views();
        let that = |state, is_ready: bool| {
            let is_that = |view: &&MemberView| view.state == state && (view.member.not_ready.is_none() == is_ready);
            to_u64(views.iter().filter(is_that).count())
        };
        let unreachable = that(MemberState::Unreachable, true) + that(MemberState::Unreachable, false);
        let states = [
            ("alive", that(MemberState::Alive, true)),
            ("not_ready", that(MemberState::Alive, false)),
            ("unreachable", unreachable),
        ];
        let help = "Nodes of the cluster as this node sees them, itself included";
        self.encode_gauges(("nodes", help, None), "state", &states)?;
        let help = "Whether this node takes children: 1, or 0 where its pager does not answer";
        self.encode_gauge(("ready", help, None), u64::from(node.pager.not_ready_reason().is_none()))
    }

    fn encode_memory(&mut self, counted: &PagerCounters) -> fmt::Result {
        let PagerCounters { faults_missing, faults_late, faults_zero, faults_cached, .. } = *counted;
        let answered = [faults_missing, faults_late, faults_zero, faults_cached];
        let kinds: Vec<LabelledValue> = ["missing", "late", "zero", "cached"].into_iter().zip(answered).collect();
        let help = "Page faults of children by what answered them: a read on their behalf, one under way, zeroes, \
                    what the node had kept";
        self.encode_counters(("page_faults", help, None), "kind", &kinds)?;
        let later = counted.round_trips.saturating_sub(counted.round_trips_demand);
        let reads = [("fault", counted.round_trips_demand), ("later", later)];
        let help = "Reads of seeds' owners that were answered, for a fault or ahead of one";
        self.encode_counters(("owner_reads", help, None), "for", &reads)?;
        let from = |all: u64, host: u64| [("network", all.saturating_sub(host)), ("host", host)];
        let help = "Pages that children got from the owners of their seeds";
        let pages = from(counted.pages_fetched, counted.pages_same_host);
        self.encode_counters(("fetched_pages", help, None), "from", &pages)?;
        let help = "Bytes of pages read from the owners of seeds, over the network or from the same host";
        let bytes = from(counted.bytes_fetched, counted.bytes_same_host);
        self.encode_counters(("fetched", help, Some(Unit::Bytes)), "from", &bytes)?;
        self.encode_counter("zero_pages", "Pages that children got as zeroes", counted.zero_pages)?;
        let help = "Sum of the times from the request for a page that a thread waits for to its arrival";
        self.encode_seconds("fault_wait", help, counted.demand_us)?;
        self.encode_seconds("page_install", "Time spent in installing pages, summed up", counted.install_us)
    }

    fn encode_cache(&mut self, cache: &CacheStats) -> fmt::Result {
        let help = "Memory in which this node keeps pages of other nodes' seeds";
        self.encode_gauge(("page_cache", help, Some(Unit::Bytes)), cache.bytes)?;
        let help = "Most memory in which this node keeps pages of other nodes' seeds";
        self.encode_gauge(("page_cache_limit", help, Some(Unit::Bytes)), cache.bytes_max)?;
        self.encode_gauge(("page_cache_seeds", "Seeds that this node keeps pages of", None), cache.seeds)?;
        let what = [("hit", cache.hits), ("miss", cache.misses), ("evicted", cache.evictions)];
        let help = "Pages that children got from the node's cache, those that were not there, and those that made room \
                    for others; since its pager began";
        self.encode_counters(("page_cache_pages", help, None), "what", &what)
    }

    fn encode_gauge(&mut self, (name, help, unit): MetricDescription, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, &with_period(help), unit.as_ref(), MetricType::Gauge)?;
        ConstGauge::new(to_gauge_value(value)).encode(metric)
    }

    fn encode_gauges(
        &mut self,
        (name, help, unit): MetricDescription,
        label: &str,
        values: &[LabelledValue],
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, &with_period(help), unit.as_ref(), MetricType::Gauge)?;
        let mut each = values.iter();
        each.try_for_each(|(said, value)| {
            ConstGauge::new(to_gauge_value(*value)).encode(metric.encode_family(&[(label, *said)])?)
        })
    }

    fn encode_counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, &with_period(help), None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn encode_counters(
        &mut self,
        (name, help, unit): MetricDescription,
        label: &str,
        values: &[LabelledValue],
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, &with_period(help), unit.as_ref(), MetricType::Counter)?;
        let mut each = values.iter();
        each.try_for_each(|(said, value)| ConstCounter::new(*value).encode(metric.encode_family(&[(label, *said)])?))
    }

    fn encode_seconds(&mut self, name: &str, help: &str, us: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, &with_period(help), Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(us as f64 / 1e6).encode(metric)
    }
}

/// The label value of a root.
fn root_label(root: RootSpec) -> &'static str {
    match root {
        RootSpec::Overlay => "overlay",
        RootSpec::Shared => "shared",
    }
}

fn to_u64(items: usize) -> u64 {
    items as u64
}

/// Adds a period, as the library does to the help of histograms.
fn with_period(help: &str) -> String {
    format!("{help}.")
}

/// Converts a number to a gauge's value.
fn to_gauge_value(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
