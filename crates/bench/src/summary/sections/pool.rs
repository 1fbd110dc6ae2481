//! The section of `farfork bench pool`: creating children in ready containers, and pausing them.

use crate::figure::Pace;
use crate::parameters::methods::{CreateMethod, PauseMethod};
use crate::parameters::pool::{PoolFigure, PoolMethod, PoolSampleKey};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{ReportCell, ReportTable};
use crate::summary::pool::{CREATE_FIGURES, PAUSE_FIGURES, PoolSummary};
use crate::summary::sections::{time_cell, time_cell_with_floor};

impl SectionSource for PoolSummary {
    fn section(&self) -> ReportSection {
        let question =
            "How long does a node take to create a child in a ready container, and to pause and resume a child?";
        let creating = [
            ("farfork", PoolMethod::Create(CreateMethod::Farfork)),
            ("fork() into namespaces", PoolMethod::Create(CreateMethod::LocalForkIntoNamespaces)),
            ("fork()", PoolMethod::Create(CreateMethod::LocalFork)),
        ];
        let pausing = [
            ("farfork", PoolMethod::Pause(PauseMethod::Farfork)),
            ("bare freezer", PoolMethod::Pause(PauseMethod::BareFreezer)),
            ("SIGSTOP and SIGCONT", PoolMethod::Pause(PauseMethod::Signals)),
        ];
        let (pool, mib) = (self.plan.pool, self.plan.mib);
        ReportSection::new("pool", "Containers", question, &self.machine_state)
            .with_table(self.section_table("create", "Creating a child", creating, CREATE_FIGURES))
            .with_table(self.section_table("pause", "Pausing a child that is warm", pausing, PAUSE_FIGURES))
            .with_note(format!("The parent has {mib} MiB, and {pool} containers are ready. In a burst: {} children at once.", pool * 4))
            .with_note("Floors: of creation, fork(2) into the namespaces of an existing container; of a pause, the freezer of a control group alone.")
    }
}

impl PoolSummary {
    /// A table of one column per method. The second method is the floor of the first one, the third is for comparison.
    fn section_table(
        &self,
        id: &str,
        title: &str,
        methods: [(&str, PoolMethod); 3],
        figures: [PoolFigure; 3],
    ) -> ReportTable {
        let columns = [&["step"][..], &methods.map(|(name, _)| name)].concat();
        let mut table = ReportTable::new(id, title, &columns);
        for figure in figures {
            for (pace, suffix) in [(Pace::BackToBack, ""), (Pace::Idle, ", after idle")] {
                let [own, floor, other] =
                    methods.map(|(_, by)| self.samples.spread(&PoolSampleKey { figure, by, pace }));
                table.add_row([
                    ReportCell::text(format!("{}{suffix}", figure.text())),
                    time_cell_with_floor(own, "µs", floor),
                    time_cell(floor, "µs"),
                    time_cell(other, "µs"),
                ]);
            }
        }
        table
    }
}
