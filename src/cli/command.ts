import { Option, type Command } from 'commander'
import { givenSettings, readConfig, SETTINGS, type Config, type FlagSetting } from '../config.ts'

/** The arguments and flags with which a command was called. */
export type Call = {
  readonly config: Config
  /** The settings that were given, by flags or variables, as texts by their variables. */
  readonly given: Readonly<Record<string, string>>
  /** The positional arguments, without flags. */
  readonly args: readonly string[]
  /** The values of flags that take a text, by the flag's name without dashes. */
  readonly texts: Readonly<Record<string, string>>
  /** The names of given flags that take no text, such as `json`. */
  readonly switches: ReadonlySet<string>
}

/** An invalid call of a command. The program prints the message and ends with exit code 2. */
export class UsageError extends Error {}

/** Makes `handler` the action of a command. If the handler returns a number, the process exits with it. */
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
  const given = { ...texts, ...Object.fromEntries([...switches].map((name) => [name, 'true'])) }
  return {
    config: readConfig(process.env, given),
    given: givenSettings(process.env, given),
    args: command.args,
    texts,
    switches,
  }
}

/**
 * Adds the flags of settings to a command. `readConfig` validates the values of flags and of environment variables
 * alike.
 */
export function addSettings(command: Command, ...names: readonly FlagSetting[]): Command {
  for (const name of names) command.addOption(settingOption(name))
  return command
}

function settingOption(name: FlagSetting): Option {
  const { flag, variable, fallback, unit, meaning } = SETTINGS[name]
  const words = unit.split(', ')
  const source = fallback === null ? variable : `${variable}, default ${fallback}`
  if (unit === 'switch') return new Option(`--${flag}`, `${meaning} [${source}]`).helpGroup('Settings:')
  const option = new Option(`--${flag} <${words.length > 1 ? 'value' : unit.toLowerCase()}>`, `${meaning} [${source}]`)
  if (words.length > 1) option.argChoices = words
  return option.helpGroup('Settings:')
}
