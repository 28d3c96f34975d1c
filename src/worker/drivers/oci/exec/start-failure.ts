import { hasErrorCode } from '../../../../lib/error-code.ts'
import { ExecFailure } from '../../../channel/guest.ts'
import type { Container } from '../container.ts'
import { hideHostFolders } from '../run/runtime/runtime.ts'
import type { ExecCli } from './exec-cli.ts'

/**
 * How long the output of a runtime is read after the runtime ended. A half-started process in the sandbox may keep it open
 * for as long as the sandbox lives.
 */
const LAST_OUTPUT_MS = 1_000
/** How many characters of a runtime's message are sent to the client. */
const MESSAGE_LIMIT = 1000

/** Describes why a runtime ended without starting the process, although every check had passed. */
export async function describeStartFailure(execCli: ExecCli, { runDir, rootPath }: Container): Promise<ExecFailure> {
  const message = hideHostFolders(await readLastOutput(execCli), [runDir, rootPath])
    .trim()
    .slice(-MESSAGE_LIMIT)
  return new ExecFailure(
    'other',
    `the runtime could not start the process: ${message === '' ? 'it did not say why' : message}`,
  )
}

/** Reads what an ended runtime has written, for at most `LAST_OUTPUT_MS`. */
async function readLastOutput({ stdout, stderr }: ExecCli): Promise<string> {
  const output = stderr ?? stdout
  const chunks: Buffer[] = []
  const timer = setTimeout(() => output.destroy(), LAST_OUTPUT_MS)
  try {
    for await (const chunk of output) {
      if (chunk instanceof Buffer) chunks.push(chunk)
    }
  } catch (error) {
    if (!hasErrorCode(error, 'ERR_STREAM_PREMATURE_CLOSE')) throw error // the timer destroyed it
  } finally {
    clearTimeout(timer)
  }
  return Buffer.concat(chunks).toString('utf8')
}
