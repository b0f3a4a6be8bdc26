//! watchlock beside its peers and beside other engines: one harness, the same workloads, one report. See README.md.

mod adapters;
mod arguments;
mod client;
mod engines;
mod machine;
mod peers;
mod plan;
mod report;
mod run;
mod statistics;
mod workloads;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use arguments::{Arguments, Run, Task};
use clap::Parser as _;
use client::Result;
use report::{Results, table};

/// Maximum number of threads for clients that block: one for each of a thousand waiters, and some.
const BLOCKING: usize = 1_200;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING)
        .build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(perform());
            // A thread of a peer may block for longer than anybody wants to wait.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn perform() -> Result<()> {
    let mut arguments = Arguments::parse();
    match arguments.task.take() {
        None => {
            let run = arguments.run()?;
            let results = run::run(&run).await?;
            write(&results, &folder(&run))
        }
        Some(Task::Render { results }) => {
            let folder = results.parent().unwrap_or(Path::new("")).to_owned();
            write(&Results::read(&results)?, &folder)
        }
        Some(Task::Hold { peer, address, prefix }) => workloads::crash::hold(peer, &address, &prefix).await,
    }
}

/// Returns where a run is written to: beside the other benchmarks if it is a whole one.
fn folder(run: &Run) -> PathBuf {
    match &run.out {
        Some(out) => out.clone(),
        None if run.whole && run.plan.nodes > 1 => here().join(format!("../nodes-{}", run.plan.nodes)),
        None if run.whole && run.plan.form == plan::OF_A_THOUSAND => here().join("../thousand"),
        None if run.whole => here().join(".."),
        None => here().join("target/part"),
    }
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Writes the report, and the numbers from which it can be written again.
fn write(results: &Results, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut json = serde_json::to_string(results)?;
    // A row on each line: a diff shows what changed.
    json = json.replace("{\"workload\"", "\n{\"workload\"");
    json.push('\n');
    fs::write(folder.join("results.json"), json)?;
    fs::write(folder.join("RESULTS.md"), table::markdown(results))?;
    println!("written to {}", folder.display());
    Ok(())
}
