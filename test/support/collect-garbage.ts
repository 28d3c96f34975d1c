import { setImmediate as nextTurn } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

/** Runs V8's garbage collector, in a later turn, because a WeakRef keeps its target until the end of the turn that read or created it. */
export async function collectGarbage(): Promise<void> {
  await nextTurn()
  setFlagsFromString('--expose-gc') // only a context that is created with this flag has it
  runInNewContext('gc')()
}
