//! Days and money: what a plan takes for the tokens asked for.

use super::planned::Planned;
use super::request::Request;
use super::site::Site;
use crate::units::Time;

/// Seconds of a day.
const DAY: f64 = 86_400.0;
/// Seconds of an hour.
const HOUR: f64 = 3_600.0;

/// A value with the ends of its 80 % interval.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Interval {
    /// The predicted value.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// What a plan takes.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Bill {
    /// Days for the tokens asked for.
    pub days: Option<Interval>,
    /// Chip-hours for them.
    pub chip_hours: Option<Interval>,
    /// Money for them, in the price's currency.
    pub money: Option<Interval>,
    /// Money for a billion tokens.
    pub per_billion_tokens: Option<Interval>,
    /// Tokens in the days that are allowed.
    pub tokens_in_days: Option<Interval>,
    /// The currency.
    pub currency: Option<String>,
}

/// What a plan takes on a machine for what is asked; with interruptions, if the request counts them.
pub fn bill(request: &Request, site: &Site, plan: &Planned) -> Bill {
    let each = |of: &dyn Fn(Time) -> f64| {
        let (low, high) = plan.interval;
        let ends = [of(low), of(high)];
        Interval { value: of(plan.step), low: ends[0].min(ends[1]), high: ends[0].max(ends[1]) }
    };
    // Steps are so much further apart as others are lost.
    let goodput = if request.interrupted { plan.goodput } else { 1.0 };
    let step_tokens = plan.tokens as f64 * goodput;
    let chips = site.chips as f64;
    let seconds = |step: Time, tokens: f64| tokens / step_tokens * step.seconds();
    let price = site.price.as_ref().map(|price| price.per_chip_hour);
    Bill {
        days: request.tokens.map(|tokens| each(&|step| seconds(step, tokens) / DAY)),
        chip_hours: request.tokens.map(|tokens| each(&|step| seconds(step, tokens) / HOUR * chips)),
        money: request
            .tokens
            .zip(price)
            .map(|(tokens, price)| each(&|step| seconds(step, tokens) / HOUR * chips * price)),
        per_billion_tokens: price.map(|price| each(&|step| seconds(step, 1e9) / HOUR * chips * price)),
        tokens_in_days: request.limits.days.map(|days| each(&|step| days * DAY / step.seconds() * step_tokens)),
        currency: site.price.as_ref().map(|price| price.currency.clone()),
    }
}

/// By how much a value misses a limit, in words that the limit follows.
fn by(value: f64, most: f64) -> String {
    match value / most {
        times if times >= 2.0 => format!("{times:.1} times"),
        times => format!("{:.0} % more than", (100.0 * (times - 1.0)).max(1.0)),
    }
}

/// Which limits of days and money a plan breaks, and by how much, in words.
pub fn broken(request: &Request, bill: &Bill) -> Vec<String> {
    let mut broken = vec![];
    if let (Some(most), Some(days)) = (request.limits.days, bill.days)
        && days.value > most
    {
        broken.push(format!("{:.1} days, {} the {most} asked for", days.value, by(days.value, most)));
    }
    if let (Some((most, currency)), Some(money)) = (&request.limits.money, bill.money)
        && money.value > *most
    {
        let more = by(money.value, *most);
        broken.push(format!("{:.0} {currency}, {more} the {most} asked for", money.value));
    }
    broken
}
