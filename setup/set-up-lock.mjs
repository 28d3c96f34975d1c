import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { say, SetUpFailure } from './say.mjs'

const pauseMs = 200
const limitMs = 10 * 60_000

/**
 * Runs `work` while no other set-up of the same folder runs. A lock is necessary because `npm start` and `npm test` may
 * start at once. Waits at most ten minutes for another set-up. If the process of the other set-up has died, takes over
 * its lock.
 */
export function withSetUpLock(folder, work) {
  mkdirSync(folder, { recursive: true })
  const file = join(folder, 'lock')
  acquire(file)
  try {
    return work()
  } finally {
    rmSync(file, { force: true })
  }
}

function acquire(file) {
  for (let waitedMs = 0; !tryAcquire(file); waitedMs += pauseMs) {
    const holder = readHolder(file)
    if (holder === undefined || !isSetUpRunning(holder)) {
      rmSync(file, { force: true })
      continue
    }
    if (waitedMs === 0) say(`waiting for another set-up of this folder (process ${holder})`)
    if (waitedMs > limitMs)
      throw new SetUpFailure(`process ${holder} has held ${file} for ten minutes; end it and run this again`)
    // Sleep synchronously: `withSetUpLock` is synchronous, so that no other code runs in this process meanwhile.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, pauseMs)
  }
}

function tryAcquire(file) {
  try {
    writeFileSync(file, String(process.pid), { flag: 'wx' })
    return true
  } catch (error) {
    if (error.code === 'EEXIST') return false
    throw new SetUpFailure(`cannot write ${file}: ${error.message}`)
  }
}

function readHolder(file) {
  try {
    return Number(readFileSync(file, 'utf8')) || undefined
  } catch (error) {
    if (error.code === 'ENOENT') return undefined
    throw error
  }
}

/**
 * Whether the process is a running set-up. On Linux it also returns false when another program has reused the process
 * id.
 */
function isSetUpRunning(pid) {
  try {
    process.kill(pid, 0)
  } catch (error) {
    return error.code === 'EPERM'
  }
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('setup/')
  } catch {
    return true
  }
}
