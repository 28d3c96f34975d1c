import { runTests } from '../run-tests.mjs'
import { say } from '../say.mjs'

const signals = ['SIGINT', 'SIGTERM', 'SIGHUP']

/**
 * Starts a machine (machine.mjs) by `start`, runs tests in its network with the options of `optionsFor(machine)`, and ends the
 * machine, also when a signal comes. Resolves with the runner's exit code.
 */
export async function runTestsOnMachine(root, start, optionsFor) {
  let isAskedToEnd = false
  const listener = () => {
    isAskedToEnd = true
  }
  // Until the machine has ended. `runToEnd` passes signals on to the tests.
  for (const signal of signals) process.on(signal, listener)
  try {
    const started = Date.now()
    const machine = await start()
    try {
      say(`the engine is up after ${((Date.now() - started) / 1000).toFixed(1)} s, in ${machine.folder}`)
      if (isAskedToEnd) return 1
      const through = ['nsenter', `--net=/proc/${machine.pid}/ns/net`, '--']
      return await runTests(root, { ...optionsFor(machine), through, atOnce: 1 })
    } finally {
      await machine.close()
    }
  } finally {
    for (const signal of signals) process.off(signal, listener)
  }
}
