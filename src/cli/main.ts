import { parseArgs } from 'node:util'
import { readConfig, SettingError, SETTINGS } from '../config.ts'
import { COMMANDS, loadAll } from './commands/commands.ts'
import { UsageError } from './commands/command.ts'
import { help, helpOf } from './commands/help.ts'

/** Runs one command of the program by its words; answers the exit code. */
async function main(argv: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...argv],
    allowPositionals: true,
    options: {
      help: { type: 'boolean', short: 'h' },
      dump: { type: 'boolean' },
      org: { type: 'string' },
      json: { type: 'boolean' },
      owner: { type: 'string' },
      slug: { type: 'string' },
      plan: { type: 'string' },
      reason: { type: 'string' },
      since: { type: 'string' },
      until: { type: 'string' },
      name: { type: 'string' },
      username: { type: 'string' },
      'password-stdin': { type: 'boolean' },
      'token-stdin': { type: 'boolean' },
      deadline: { type: 'string' },
      wait: { type: 'boolean' },
      force: { type: 'boolean' },
      role: { type: 'string' },
      scopes: { type: 'string' },
      'expires-in': { type: 'string' },
      'expires-at': { type: 'string' },
      ...Object.fromEntries(
        Object.values(SETTINGS).flatMap(({ flag }) => (flag === null ? [] : [[flag, { type: 'string' as const }]])),
      ),
    },
  })
  const flags: Readonly<Record<string, unknown>> = values
  const [name = 'help', ...args] = positionals
  const command = await COMMANDS[name]?.()
  if (command === undefined || flags['help'] === true) {
    const ownPage = command === undefined ? null : helpOf(command)
    process.stdout.write(ownPage ?? help(await loadAll()))
    if (command !== undefined || name === 'help') return 0
    throw new UsageError(`there is no command '${name}'`)
  }
  const texts = Object.fromEntries(
    Object.entries(flags).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
  )
  const switches = new Set(Object.entries(flags).flatMap(([flag, value]) => (value === true ? [flag] : [])))
  return command.run({ config: readConfig(process.env, texts), args, texts, switches })
}

try {
  process.exitCode = await main(process.argv.slice(2))
} catch (error) {
  const isPlain = error instanceof UsageError || error instanceof SettingError || isArgumentError(error)
  const text = error instanceof Error ? (isPlain ? error.message : describe(error)) : String(error)
  process.stderr.write(`sandyard: ${text}\n`)
  process.exitCode = isPlain ? 2 : 1
}

function isArgumentError(error: unknown): boolean {
  return error instanceof Error && 'code' in error && String(error.code).startsWith('ERR_PARSE_ARGS')
}

/** The message with its causes; the stack is for `SANDYARD_LOG_LEVEL=debug`. */
function describe(error: Error): string {
  if (process.env['SANDYARD_LOG_LEVEL'] === 'debug') return error.stack ?? error.message
  return error.cause instanceof Error ? `${error.message}\n  because: ${describe(error.cause)}` : error.message
}
