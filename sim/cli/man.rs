//! `windtunnel man`: pages for `man`, made from the same definitions as `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::{Cli, Failure, Outcome, Written, help, print};
use windtunnel::files::Output;
use windtunnel::near;

/// Print the manual page of a command in roff, or write the pages of all commands into a folder.
#[derive(Debug, clap::Args)]
#[command(after_help = help::MAN)]
pub struct Args {
    /// The command, such as `show memory`. Without one, the page of windtunnel itself.
    command: Vec<String>,
    /// Write the pages of all commands into this folder, which is made if it is not there.
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let mut whole = Cli::command();
    whole.build();
    match &args.out {
        None => print(&page(named(&whole, &args.command)?)?)?,
        Some(folder) => {
            let mut pages = vec![];
            all(&whole, &mut pages)?;
            // Each can be written, or none is.
            let open = |name: String| Output::open_in_new(&folder.join(name)).map_err(Failure::input);
            let outputs: Vec<(Output, String)> =
                pages.into_iter().map(|(name, text)| Ok((open(name)?, text))).collect::<Result<_, Failure>>()?;
            let mut written = Written::default();
            for (output, text) in outputs {
                written.write(output, &text, "");
            }
            written.report("")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The command of that name, word by word.
fn named<'c>(whole: &'c Command, words: &[String]) -> Result<&'c Command, Failure> {
    words.iter().try_fold(whole, |command, word| {
        command.find_subcommand(word).ok_or_else(|| {
            let known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let guess = near::did_you_mean(word, known);
            Failure::input(format!("{} has no command {word:?}{guess}", command.get_bin_name().unwrap_or("windtunnel")))
        })
    })
}

fn page(command: &Command) -> Result<String, Failure> {
    let mut roff = vec![];
    Man::new(command.clone())
        .manual("Windtunnel")
        .source(concat!("windtunnel ", env!("CARGO_PKG_VERSION")))
        .render(&mut roff)
        .map_err(Failure::input)?;
    String::from_utf8(roff).map_err(Failure::input)
}

/// The pages of a command and of all its subcommands, with their files' names.
fn all(command: &Command, pages: &mut Vec<(String, String)>) -> Result<(), Failure> {
    pages.push((format!("{}.1", command.get_display_name().unwrap_or_else(|| command.get_name())), page(command)?));
    let mut shown = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    shown.try_for_each(|sub| all(sub, pages))
}
