//! A neighbour of a volume: k-median clustering of a stream of points, as in PARSEC's streamcluster. It generates
//! points in chunks, and improves the centers of each chunk by local search, which uses CPU time and memory bandwidth.
//! Each process is a `farfork bench process`.

use std::io::{self, Read as _};
use std::time::Instant;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::endpoint::print_line;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::RunningProgram;

/// The kind of the process, and its name in errors.
const PROCESS: &str = "clustering";
/// Coordinates of a point, and centers of a chunk, as published.
const DIMENSIONS: usize = 128;
const CENTERS: usize = 20;
/// Number of points that are tried in place of each center of a chunk.
const CANDIDATES_PER_CENTER: usize = 4;

/// The size of a run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ClusteringSpec {
    pub(crate) points: u64,
    /// Points per chunk.
    pub(crate) chunk: u64,
}

/// Processes that cluster the same points, all at the same time.
pub(crate) struct ClusteringProcesses(Vec<RunningProgram>);

impl ClusteringProcesses {
    /// Starts a process on each machine, and makes them begin.
    pub(crate) fn start<'a>(
        machines: impl Iterator<Item = &'a dyn Machine>,
        spec: ClusteringSpec,
    ) -> Result<Self, BenchError> {
        let start = |machine: &dyn Machine| machine.start_process(PROCESS, PROCESS, &spec)?.ready();
        let mut processes = machines.map(start).collect::<Result<Vec<_>, _>>()?;
        for process in &mut processes {
            process.send_message(b'g')?;
        }
        Ok(Self(processes))
    }

    /// Waits for all processes. Returns the time of each, in seconds.
    ///
    /// # Errors
    /// A process fails, or two results differ.
    pub(crate) fn finish(mut self) -> Result<Vec<f64>, BenchError> {
        let mut results: Vec<[i64; 2]> = Vec::new();
        for process in &mut self.0 {
            results.push(process.read_answer("clustered")?);
        }
        let wrong = results.iter().filter(|[_, cost]| *cost != results[0][1]).count() as u64;
        if wrong > 0 {
            return Err(BenchError::WrongMemory { count: wrong, what: "results of a clustering" });
        }
        Ok(results.iter().map(|[ns, _]| *ns as f64 / 1e9).collect())
    }
}

/// Runs the process of a specification, which is JSON. It prints `ready`, waits for one letter, and prints `clustered
/// NS COST`.
///
/// # Errors
/// The specification is invalid, or the process cannot read or print.
pub(crate) fn run_clustering(spec: &str) -> io::Result<()> {
    let spec: ClusteringSpec = serde_json::from_str(spec)?;
    print_line("ready")?;
    io::stdin().read_exact(&mut [0])?;
    let started = Instant::now();
    let cost = cluster_stream(spec);
    print_line(&format!("clustered {} {cost:.0}", started.elapsed().as_nanos()))
}

/// The sum of the distances of all points to the nearest centers of their chunks.
fn cluster_stream(spec: ClusteringSpec) -> f64 {
    let mut random = Rng::with_seed(spec.points);
    let (mut left, mut cost) = (spec.points as usize, 0.0);
    while left > 0 {
        let count = left.min(spec.chunk.max(1) as usize);
        cost += PointChunk::generate(count, &mut random).improve(&mut random);
        left -= count;
    }
    cost
}

/// Points of a stream, and the indices of those that are centers.
struct PointChunk {
    points: Vec<[f32; DIMENSIONS]>,
    centers: Vec<usize>,
}

impl PointChunk {
    fn generate(count: usize, random: &mut Rng) -> Self {
        let points = (0..count).map(|_| std::array::from_fn(|_| random.f32())).collect();
        let centers = (0..CENTERS.min(count)).map(|_| random.usize(..count)).collect();
        Self { points, centers }
    }

    /// Replaces centers by other points if that lowers the cost. Returns the final cost.
    fn improve(mut self, random: &mut Rng) -> f64 {
        let mut cost = self.cost();
        for index in 0..self.centers.len() {
            for _ in 0..CANDIDATES_PER_CENTER {
                let before = std::mem::replace(&mut self.centers[index], random.usize(..self.points.len()));
                let now = self.cost();
                if now < cost {
                    cost = now;
                } else {
                    self.centers[index] = before;
                }
            }
        }
        cost
    }

    fn cost(&self) -> f64 {
        let nearest = |point: &[f32; DIMENSIONS]| {
            let distances = self.centers.iter().map(|center| squared_distance(point, &self.points[*center]));
            distances.fold(f32::INFINITY, f32::min)
        };
        self.points.iter().map(|point| f64::from(nearest(point).sqrt())).sum()
    }
}

fn squared_distance(one: &[f32; DIMENSIONS], other: &[f32; DIMENSIONS]) -> f32 {
    one.iter().zip(other).map(|(one, other)| (one - other) * (one - other)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clustering_is_deterministic_and_local_search_lowers_the_cost() {
        let spec = ClusteringSpec { points: 300, chunk: 100 };
        let cost = cluster_stream(spec);
        assert_eq!(cost.to_bits(), cluster_stream(spec).to_bits());
        let mut random = Rng::with_seed(7);
        let chunk = PointChunk::generate(200, &mut random);
        let before = chunk.cost();
        assert!(chunk.improve(&mut random) < before);
    }
}
