import { CommanderError } from 'commander'
import { hasErrorCode } from '../lib/error-code.ts'
import { SettingError } from '../config.ts'
import { UsageError } from './command.ts'
import { describeProblem } from './describe-problem.ts'
import { makeProgram } from './program.ts'

const USAGE_EXIT_CODE = 2

// A reader such as `head` may close the pipe. A command then ends quietly; a server, which listens for signals, runs on.
for (const stream of [process.stdout, process.stderr])
  stream.on('error', (error) => {
    if (!hasErrorCode(error, 'EPIPE')) throw error
    if (process.listenerCount('SIGTERM') === 0) process.exit(0)
  })

try {
  const argv = process.argv.slice(2)
  const program = await makeProgram(argv)
  await program.parseAsync(argv.length === 0 ? ['--help'] : argv, { from: 'user' })
} catch (error) {
  process.exitCode = reportError(error)
}

/** Prints an error and returns the exit code: 2 for a wrong call, 1 for a failure. */
function reportError(error: unknown): number {
  // commander has already printed this error. `--help` and `--version` also end with this error, but with exit code 0.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : USAGE_EXIT_CODE
  const isUsageError = error instanceof UsageError || error instanceof SettingError
  const text = error instanceof Error ? (isUsageError ? error.message : formatError(error)) : String(error)
  process.stderr.write(`sandyard: ${describeProblem(error) ?? text}\n`)
  return isUsageError ? USAGE_EXIT_CODE : 1
}

/** Formats the error's message with its causes, or its stack with `SANDYARD_LOG_LEVEL=debug`. */
function formatError(error: Error): string {
  if (process.env['SANDYARD_LOG_LEVEL'] === 'debug') return error.stack ?? error.message
  return error.cause instanceof Error ? `${error.message}\n  because: ${formatError(error.cause)}` : error.message
}
