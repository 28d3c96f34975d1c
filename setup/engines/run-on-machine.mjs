import { runTests } from '../run-tests.mjs'
import { say } from '../say.mjs'

const signals = ['SIGINT', 'SIGTERM', 'SIGHUP']

/**
 * Starts a machine (machine.mjs) by `start`, runs `work(machine, through)`, and ends the machine, also when a signal comes. `through` are
 * the words before a command that run it in the machine's network. Resolves with the exit code of `work`.
 */
export async function runOnMachine(start, work) {
  let isAskedToEnd = false
  const listener = () => {
    isAskedToEnd = true
  }
  // Until the machine has ended. `runToEnd` passes signals on to the work.
  for (const signal of signals) process.on(signal, listener)
  try {
    const started = Date.now()
    const machine = await start()
    try {
      say(`the engine is up after ${((Date.now() - started) / 1000).toFixed(1)} s, in ${machine.folder}`)
      if (isAskedToEnd) return 1
      return await work(machine, ['nsenter', `--net=/proc/${machine.pid}/ns/net`, '--'])
    } finally {
      await machine.close()
    }
  } finally {
    for (const signal of signals) process.off(signal, listener)
  }
}

/** Runs tests in the network of a machine, with the options of `optionsFor(machine)`. Resolves with the runner's exit code. */
export async function runTestsOnMachine(root, start, optionsFor) {
  return await runOnMachine(start, (machine, through) => runTests(root, { ...optionsFor(machine), through, atOnce: 1 }))
}
