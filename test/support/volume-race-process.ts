// Run by test/worker/volumes/race.test.ts: plays a sandbox that changes its volume while it is served. As fast as
// possible it makes `x` a folder or a symlink to something beside the volume, and `f` a file, such a symlink or a FIFO.
// Ends with its input.
import { execFileSync } from 'node:child_process'
import { linkSync, mkdirSync, renameSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs'

const [root = '', outside = ''] = process.argv.slice(2)
/** Rounds between two looks at the input. */
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

/** Never through `x`: it might be a symlink by now, and this process, unlike the tested one, would follow it. */
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

/** The other side changes the tree too, so a failure is tried again in the next round. Returns the reason. */
function attempt(step: () => void): string | null {
  try {
    step()
    return null
  } catch (error) {
    if (!(error instanceof Error && 'code' in error)) throw error
    return String(error.code)
  }
}
