import { Option, type Command } from 'commander'
import { readConfig, SETTINGS, type Config, type FlagSetting } from '../config.ts'

/** What a command is called with. */
export type Call = {
  readonly config: Config
  /** The arguments, without flags. */
  readonly args: readonly string[]
  /** The flags that take a text, by name without dashes. */
  readonly texts: Readonly<Record<string, string>>
  /** The flags that take no text, such as `json`. */
  readonly switches: ReadonlySet<string>
}

/** A wrong call of a command. The program prints the message and ends with exit code 2. */
export class UsageError extends Error {}

/** Has a command do `handler`. The number that it answers becomes the exit code. */
export function runs(command: Command, handler: (call: Call) => Promise<number | void>): Command {
  return command.action(async () => {
    const exitCode = await handler(readCall(command))
    if (exitCode !== undefined) process.exitCode = exitCode
  })
}

function readCall(command: Command): Call {
  const flags = command.options.map((option): readonly [string, unknown] => [
    option.name(),
    command.getOptionValue(option.attributeName()),
  ])
  const texts = Object.fromEntries(flags.filter((flag): flag is [string, string] => typeof flag[1] === 'string'))
  const switches = new Set(flags.filter(([, value]) => value === true).map(([name]) => name))
  return { config: readConfig(process.env, texts), args: command.args, texts, switches }
}

/** Adds the flags of settings to a command. Their values are checked by `readConfig`, as those of the variables are. */
export function addSettings(command: Command, ...names: readonly FlagSetting[]): Command {
  for (const name of names) command.addOption(settingOption(name))
  return command
}

function settingOption(name: FlagSetting): Option {
  const { flag, variable, fallback, unit, meaning } = SETTINGS[name]
  const words = unit.split(', ')
  const source = fallback === null ? variable : `${variable}, default ${fallback}`
  const option = new Option(`--${flag} <${words.length > 1 ? 'value' : unit.toLowerCase()}>`, `${meaning} [${source}]`)
  if (words.length > 1) option.argChoices = words
  return option.helpGroup('Settings:')
}
