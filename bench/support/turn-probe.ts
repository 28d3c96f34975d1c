/**
 * Loaded into a server process by `--import`. Measures the processor time of the turns of its event loop. On SIGUSR2, writes the
 * longest of them since the last such signal, in milliseconds, into the file that BENCH_TURNS_FILE names.
 */
import { writeFileSync } from 'node:fs'

const file = process.env['BENCH_TURNS_FILE']
if (file !== undefined && process.argv[2] === 'up') {
  let [before, longestMs] = [process.threadCpuUsage(), 0]
  // A timer fires at most once in each turn, so what the thread used since the last time is at least as long as each turn.
  setInterval(() => {
    const now = process.threadCpuUsage()
    longestMs = Math.max(longestMs, (now.user + now.system - before.user - before.system) / 1000)
    before = now
  }, 1).unref()
  process.on('SIGUSR2', () => {
    writeFileSync(file, String(longestMs))
    longestMs = 0
  })
}
