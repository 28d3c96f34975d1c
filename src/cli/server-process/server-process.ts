/**
 * The program of the further server processes of `up` and `serve`. It has no secret on its command line or in its environment: its
 * parent sends it everything over the pipe between them, and it ends when that pipe is closed.
 */
import { readConfig } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { rateLimitedLog } from '../../lib/rate-limited-log.ts'
import { openParentPipe } from '../child/parent-pipe.ts'
import { tuneMemory } from '../tune-memory.ts'
import { openLog } from '../open-log.ts'
import { openStore } from '../server/open-store.ts'
import { startControl } from '../server/start-control.ts'
import { waitForAbort } from '../stop-signals.ts'
import type { ServerEvent, ServerOrder, ServerStart } from './messages.ts'

process.title = 'sandyard: server'

const stopping = new AbortController()
const started = Promise.withResolvers<ServerStart>()
const pipe = openParentPipe<ServerOrder, ServerEvent>((order) => {
  if (order.kind === 'start') started.resolve(order.start)
  else stopping.abort(new Error('the server ends'))
})
const exitCode = await run(await started.promise)
pipe.close()
process.exit(exitCode)

/** Serves until the parent stops it. Resolves with the exit code. */
async function run({ settings, folder, index }: ServerStart): Promise<number> {
  const config = readConfig(settings, {})
  const log = rateLimitedLog(openLog(config), systemClock)
  try {
    await using store = await openStore(config, log)
    await using _control = await startControl(config, folder, store, { log, index })
    pipe.tell({ kind: 'ready' })
    tuneMemory()
    await waitForAbort(AbortSignal.any([stopping.signal, store.schema.incompatible]))
    store.schema.incompatible.throwIfAborted()
    return 0
  } catch (error) {
    log.error({ error }, 'a server process failed')
    return 1
  }
}
