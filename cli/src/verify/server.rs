//! What the server is, and whether its clock is one.

use std::time::{Duration, Instant};

use mongodb::{
    Database,
    bson::{Document, doc},
    error::Error,
};

use super::report::Check;
use crate::{
    connection::to_its_end,
    doctor::{
        self, member_clocks,
        topology::{FORGETS, HIDES_ITS_SET, forgets, hides_its_set},
    },
    exit::Failure,
    ground::{Ground, asked},
    measure::Samples,
};

pub(super) const SECTION: &str = "server";

/// The servers on which the tests of this version ran.
const TESTED: &str = "4.4.2, 5.0.32, 6.0.5 and 6.0.27";

/// Number of readings of the server's clock, and of its answers that are timed.
const READINGS: usize = 21;

/// Maximum distance of `$$NOW` from the times that the server shows before and after it.
const APART: i64 = 1_000;

pub(super) async fn run(ground: &Ground<'_>, checks: &mut Vec<Check>) -> Result<(), Failure> {
    let database = ground.database();
    let build = ask(database, doc! { "buildInfo": 1 }).await?;
    checks.push(fact("version", build, |build| {
        let version = build.get_str("version").ok()?;
        Some(format!("MongoDB {version}; the tests ran on {TESTED}"))
    }));
    let hello = ask(database, doc! { "hello": 1 }).await?;
    let clocks = match &hello {
        Ok(hello) => member_clocks(&ground.place, hello).await?,
        Err(_) => None,
    };
    let hides = hello.as_ref().is_ok_and(hides_its_set);
    checks.extend(hides.then(|| Check::broken("answers", HIDES_ITS_SET)));
    checks.push(fact("topology", hello, |hello| {
        Some(match (hello.get_str("setName"), hello.get_str("msg")) {
            (Ok(set), _) => {
                let members = hello.get_array("hosts").map_or(1, Vec::len);
                format!("replica set {set}, members with data: {members}")
            }
            (_, Ok("isdbgrid")) => "mongos: a sharded cluster".to_owned(),
            _ => "standalone: waiters poll".to_owned(),
        })
    }));
    let admin = database.client().database("admin");
    let status = ask(&admin, doc! { "serverStatus": 1 }).await?;
    checks.push(fact("storage", status, |status| {
        let engine = status.get_document("storageEngine").ok()?.get_str("name").ok()?;
        Some(engine.to_owned())
    }));
    let version = ask(&admin, doc! { "getParameter": 1, "featureCompatibilityVersion": 1 }).await?;
    checks.push(fact("compatibility", version, |answer| {
        let version = answer.get_document("featureCompatibilityVersion").ok()?;
        Some(version.get_str("version").ok()?.to_owned())
    }));
    let defaults = ask(&admin, doc! { "getDefaultRWConcern": 1 }).await?;
    checks.push(fact("default concerns", defaults, |defaults| {
        let of = |name| {
            defaults
                .get_document(name)
                .map_or("none".to_owned(), Document::to_string)
        };
        Some(format!(
            "write {}, read {}; watchlock sets its own",
            of("defaultWriteConcern"),
            of("defaultReadConcern")
        ))
    }));
    let config = ask(&admin, doc! { "replSetGetConfig": 1 }).await?;
    checks.push(majority(&config));
    checks.push(fact("elections", config, |answer| {
        let settings = answer.get_document("config").ok()?.get_document("settings").ok()?;
        let of = |name| settings.get(name).map_or("unknown".to_owned(), ToString::to_string);
        Some(format!(
            "after {} ms without a primary, heartbeats every {} ms",
            of("electionTimeoutMillis"),
            of("heartbeatIntervalMillis")
        ))
    }));
    checks.push(latency(ground).await?);
    checks.push(clock(ground).await?);
    checks.extend(clocks.map(|clocks| {
        let (name, found) = ("member clocks", clocks.found);
        match clocks.status {
            doctor::Status::Ok => Check::kept(name, found),
            doctor::Status::Problem => Check::broken(name, found),
            // Some members did not answer, or may not be asked.
            doctor::Status::Warning | doctor::Status::Unknown => Check::skipped(name, found),
        }
    }));
    Ok(())
}

/// Asks the server. An answer that is a refusal is one too: many of these commands need rights that locks do not.
async fn ask(database: &Database, command: Document) -> Result<Result<Document, Error>, Failure> {
    let database = database.clone();
    to_its_end(async move { database.run_command(command).await }).await
}

/// Returns the answer to a command that everybody may send.
pub(super) async fn answer(ground: &Ground<'_>, command: Document) -> Result<Document, Failure> {
    let database = ground.database().clone();
    asked(async move { database.run_command(command).await }).await
}

fn fact(name: &str, answer: Result<Document, Error>, told: impl FnOnce(&Document) -> Option<String>) -> Check {
    let found = match answer {
        Ok(answer) => told(&answer).unwrap_or_else(|| "the server does not say".to_owned()),
        Err(error) => format!("not visible: {}", Failure::driver(&error).message()),
    };
    Check::noted(name, found)
}

/// Checks that what a majority confirms is on its disks.
fn majority(config: &Result<Document, Error>) -> Check {
    let name = "journal";
    match config {
        Ok(answer) if forgets(answer) => Check::broken(name, FORGETS),
        Ok(_) => Check::kept(name, "what a majority confirms is on its disks"),
        Err(error) => Check::skipped(name, format!("not visible: {}", Failure::driver(error).message())),
    }
}

async fn latency(ground: &Ground<'_>) -> Result<Check, Failure> {
    let (mut pings, mut writes) = (Samples::default(), Samples::default());
    let written = ground.collection("written");
    for _ in 0..READINGS {
        let begun = Instant::now();
        answer(ground, doc! { "ping": 1 }).await?;
        pings.push(begun.elapsed());
        let (begun, collection) = (Instant::now(), written.clone());
        asked(async move { collection.insert_one(doc! {}).await }).await?;
        writes.push(begun.elapsed());
    }
    let found = format!(
        "an answer in {:.1} ms, a write by a majority in {:.1} ms (medians)",
        pings.median(),
        writes.median()
    );
    Ok(Check::noted("latency", found))
}

/// Checks the clock that ends leases: `$$NOW` rises from command to command, is the same within one, and is the one
/// that the server shows.
async fn clock(ground: &Ground<'_>) -> Result<Check, Failure> {
    let name = "clock";
    let collection = ground.collection("clock");
    let mut last = None;
    for _ in 0..READINGS {
        let before = answer(ground, doc! { "hello": 1 }).await?;
        let written = collection.clone();
        let update = vec![doc! { "$set": { "a": "$$NOW" } }, doc! { "$set": { "b": "$$NOW" } }];
        let change = async move {
            written
                .find_one_and_update(doc! { "_id": 1 }, update)
                .upsert(true)
                .await
        };
        asked(change).await?;
        let read = collection.clone();
        let read = asked(async move { read.find_one(doc! { "_id": 1 }).await }).await?;
        let after = answer(ground, doc! { "hello": 1 }).await?;
        let read = read.unwrap_or_default();
        let of = |document: &Document, field| document.get_datetime(field).ok().copied();
        let shown = of(&before, "localTime").zip(of(&after, "localTime"));
        let (Some(a), Some(b), Some((from, to))) = (of(&read, "a"), of(&read, "b"), shown) else {
            let found = "the server writes no time for `$$NOW`, or tells none: leases have no end";
            return Ok(Check::broken(name, found).with(format!("{read}\n{after}")));
        };
        let millis = a.timestamp_millis();
        let problem = if a != b {
            Some(format!(
                "`$$NOW` is {a} and {b} in one command: a holder may be judged by two times"
            ))
        } else if last.is_some_and(|last| a <= last) {
            Some(format!("`$$NOW` does not rise: {a} comes after {}", last.unwrap_or(a)))
        } else if millis < from.timestamp_millis() - APART || millis > to.timestamp_millis() + APART {
            Some(format!(
                "`$$NOW` is {a}, and the server's time {from} before it and {to} after it"
            ))
        } else {
            None
        };
        if let Some(problem) = problem {
            return Ok(Check::broken(name, problem));
        }
        last = Some(a);
        // Longer than the resolution of the clock.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let found = format!("`$$NOW` rises, is one in each command, and is the server's time (in {READINGS} commands)");
    Ok(Check::kept(name, found))
}
