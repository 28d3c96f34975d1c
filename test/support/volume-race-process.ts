// test/worker/volumes/race.test.ts starts this process, which acts as a sandbox that changes its volume during file
// requests. As fast as possible, it makes `x` a folder or a symlink that leads out of the volume, and `f` a file, such
// a symlink or a FIFO. The process ends when its standard input ends.
import { execFileSync } from 'node:child_process'
import { linkSync, mkdirSync, renameSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs'
import { errorCodeOf } from '../../src/lib/error-code.ts'

const [root = '', outside = ''] = process.argv.slice(2)
/** The number of rounds between two checks of standard input. */
const TURNS = 100

process.chdir(root)
execFileSync('mkfifo', ['fifo'])
writeFileSync('plain', 'inside')
let made = 0
process.stdin.on('end', () => process.exit(0)).resume()
process.stdout.write('ready\n')
turnMany()

function turnMany(): void {
  for (let turn = 0; turn < TURNS; turn += 1)
    for (const way of [`../${outside}`, `${root}/../${outside}`, `../volume/../${outside}`, '..']) {
      if (attempt(() => renameSync('x', 'x.folder')) === 'ENOENT') makeFolder()
      attempt(() => symlinkSync(way, 'x'))
      attempt(() => unlinkSync('x'))
      attempt(() => renameSync('x.folder', 'x'))
      show(() => linkSync('plain', 'f.next'))
      show(() => symlinkSync(`${way}/secret`, 'f.next'))
      show(() => linkSync('fifo', 'f.next'))
    }
  setImmediate(turnMany)
}

/**
 * Makes the folder `x.folder`. Writes no file by a path through `x`, because `x` may be a symlink, and this process
 * follows it.
 */
function makeFolder(): void {
  const name = `fresh-${String((made += 1))}`
  mkdirSync(name)
  writeFileSync(`${name}/secret`, 'inside')
  if (attempt(() => renameSync(name, 'x.folder')) !== null) {
    unlinkSync(`${name}/secret`)
    attempt(() => renameSync(name, 'x.folder'))
  }
}

function show(make: () => void): void {
  attempt(() => unlinkSync('f.next'))
  attempt(make)
  attempt(() => renameSync('f.next', 'f'))
}

/**
 * Returns the error code of a step that failed, or null. Steps fail because the tested process changes the tree too.
 */
function attempt(step: () => void): string | null {
  try {
    step()
    return null
  } catch (error) {
    const code = errorCodeOf(error)
    if (code === null) throw error
    return code
  }
}
