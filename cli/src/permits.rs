//! `watchlock permits`.

use std::process::ExitCode;

use watchlock::operate::Kind;

use crate::{
    arguments::Permits,
    connection::Connection,
    exit::{DATA, Failure, Outcome},
    messages::say,
    show::no_trace,
    text::plain,
};

pub(crate) async fn permits(connection: &Connection, arguments: Permits) -> Outcome {
    let Permits { output, name, number } = arguments;
    let locks = connection.prompt().await?.locks().await?;
    // A number turns whatever has the name into a semaphore, also a mutex that is free at the moment.
    let there = locks.inspect(&name).await?;
    let is_new = there.is_none() && number.is_some();
    let is_another = there.as_ref().is_some_and(|lock| lock.kind != Kind::Semaphore);
    let lock = match number {
        _ if is_another => there,
        Some(number) => Some(locks.semaphore(&name, number).set_permits(number).await?),
        None => there,
    };
    if let Some(lock) = lock.as_ref().filter(|lock| lock.kind != Kind::Semaphore) {
        let told = format!("`{}` is used as {}, not as a semaphore", plain(&name), lock.kind);
        return Err(Failure::new(DATA, told));
    }
    if is_new {
        say(&format!("there was no semaphore `{}`: made it", plain(&name)));
    }
    let code = if lock.is_some() {
        ExitCode::SUCCESS
    } else {
        say(&no_trace(&name));
        ExitCode::FAILURE
    };
    let capacity = lock.as_ref().and_then(|lock| lock.capacity);
    let text = || capacity.map(|permits| format!("{permits}\n")).unwrap_or_default();
    output.answer(&lock, text, code)
}
