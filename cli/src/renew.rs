//! `watchlock renew`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use watchlock::{Detached, FencingToken};

use crate::{
    arguments::Renew,
    connection::Connection,
    exit::{self, Failure, Outcome},
    holder::who,
    json,
    messages::{say_held_by, say_not_held},
    show::live,
    text::time,
};

pub(crate) async fn renew(connection: &Connection, arguments: Renew) -> Outcome {
    let Renew { output, token, name } = arguments;
    let token = FencingToken::try_from(token).map_err(Failure::usage)?;
    let locks = connection.prompt().await?.locks().await?;
    let after = locks.renew_detached(&Detached::new(&name, token)).await?;
    let held = after.iter().flat_map(|lock| &lock.holders);
    let renewed = { held }.find(|holder| holder.token == token);
    let code = if renewed.is_some() {
        ExitCode::SUCCESS
    } else {
        // A client that has it renews it itself.
        let present = locks.inspect(&name).await?;
        let mut held = present.iter().flat_map(live);
        match held.find(|holder| holder.token == token) {
            Some(holder) => say_held_by(&name, token, &who(holder)),
            None => say_not_held(&name, token),
        }
        ExitCode::FAILURE
    };
    let written = match renewed {
        _ if output.json => json::print_change(&name, "renewed", renewed, after.as_ref()),
        Some(holder) => writeln!(io::stdout().lock(), "{}", time(holder.until)),
        None => Ok(()),
    };
    exit::after(written, code)
}
