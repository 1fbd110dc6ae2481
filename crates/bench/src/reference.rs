//! The published figures of MITOSIS, the first remote fork in a kernel, for its C++ micro-benchmark. Summaries print
//! them next to farfork's.
//!
//! They are medians of the runs that the instructions of the authors' artifact print. The first line of each execution
//! is left out, as in those instructions.

use crate::figure::ForkFigure;

// The machines differ, which a summary says next to the comparison. Theirs had RDMA cards and Linux 4.15 with a kernel module
// of their own. Their `resume` was between two machines and into a lean container, their `execution` on one machine, in
// random order.

/// What the report says of the column.
pub(crate) const SOURCE: &str = "the C++ micro-benchmark of MITOSIS, as published: RDMA, a module of Linux 4.15";

/// Sizes for which there are figures, in MiB; a run measures them unless it is told otherwise.
pub(crate) const SIZES_MIB: [u64; 10] = [1, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// `fork_prepare`, in ms.
const PREPARE_MS: [f64; 10] = [0.648, 0.730, 0.890, 1.209, 1.933, 3.362, 6.227, 11.789, 21.705, 42.700];

/// `fork_resume`, in ms.
const RESUME_MS: [f64; 10] = [2.918, 2.941, 2.945, 3.014, 3.125, 3.339, 3.763, 4.581, 6.230, 9.595];

/// Every page once, in random order, after the fork, in ms.
const EXECUTION_MS: [f64; 10] = [1.074, 4.347, 7.779, 17.830, 36.069, 75.376, 152.506, 309.967, 630.660, 1246.940];

/// The reference of a figure for a size in MiB, in ms; none where nothing was published.
pub(crate) fn published_ms(figure: ForkFigure, mib: u64) -> Option<f64> {
    let column = match figure {
        // There the program itself makes the call; of who is prepared by another, CRIU's way too, it is the nearest.
        ForkFigure::Checkpoint | ForkFigure::Prepare => PREPARE_MS,
        ForkFigure::Resume => RESUME_MS,
        ForkFigure::Execution => EXECUTION_MS,
        _ => return None,
    };
    SIZES_MIB.iter().position(|size| *size == mib).map(|row| column[row])
}

#[cfg(test)]
mod tests {
    use super::{ForkFigure, SIZES_MIB, published_ms};

    #[test]
    fn each_size_has_its_own_figures_and_others_none() {
        assert_eq!(
            (published_ms(ForkFigure::Checkpoint, 1), published_ms(ForkFigure::Prepare, 1)),
            (Some(0.648), Some(0.648))
        );
        assert_eq!(published_ms(ForkFigure::Resume, 64), Some(3.339));
        assert_eq!(published_ms(ForkFigure::Execution, 1024), Some(1246.940));
        assert_eq!(published_ms(ForkFigure::Prepare, 3), None);
        assert_eq!(published_ms(ForkFigure::Pause, 1), None);
    }

    #[test]
    fn larger_parents_cost_more() {
        for figure in [ForkFigure::Prepare, ForkFigure::Resume, ForkFigure::Execution] {
            let column: Vec<_> = SIZES_MIB.iter().map(|mib| published_ms(figure, *mib).unwrap()).collect();
            assert!(column.is_sorted(), "{figure:?}: {column:?}");
        }
    }
}
