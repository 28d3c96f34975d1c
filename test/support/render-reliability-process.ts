import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describeMachine } from '../../bench/support/machine.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { AREAS, type FaultNote } from './reliability.ts'

// Writes the report from the notes of the fault tests. Arguments: NOTES-FOLDER FILE SECONDS. `npm run reliability`
// calls it.

const TITLES: Readonly<Record<FaultNote['area'], string>> = {
  replicas: 'Server processes that die, are stopped or come back',
  workers: 'Workers that are cut off, die or come back late',
  postgresql: 'PostgreSQL that is unavailable, slow or full',
  data: 'Data: full disks, moves, backups and restores',
  schedules: 'Deterministic schedules',
  clients: 'Clients that attack or retry',
  soak: 'All faults at once, for a long time',
}

const [folder = '', file = '', seconds = ''] = process.argv.slice(2)
const notes = readNotes(folder)
if (notes.length === 0) throw new Error('no test noted a fault')
const { stdout: commit } = await runCommand('git', ['rev-parse', '--short', 'HEAD'], { timeoutMs: 10_000 })
writeFileSync(file, render(notes, { commit: commit.trim(), seconds }))
process.stdout.write(`${file}: ${String(notes.length)} faults\n`)

function readNotes(from: string): readonly FaultNote[] {
  return readdirSync(from)
    .toSorted()
    .flatMap((name) => readFileSync(join(from, name), 'utf8').trimEnd().split('\n'))
    .map((line) => JSON.parse(line))
}

function render(all: readonly FaultNote[], run: { readonly commit: string; readonly seconds: string }): string {
  const injected = all.reduce((sum, note) => sum + note.injected, 0)
  const chapters = AREAS.flatMap((area) => {
    const rows = all.filter((note) => note.area === area)
    return rows.length === 0 ? [] : [`## ${TITLES[area]}\n\n${tableOf(rows)}\n`]
  })
  const day = systemClock.now().toISOString().slice(0, 10)
  return `# Reliability

\`npm run reliability\` generates this page from the notes of its tests; don't edit it. Each row is one fault, with the number of injections, the checks during and after the fault, and the results. A test that finds a breach fails, and then this page is not written.

${day}, commit ${run.commit}, ${describeMachine()}; ${run.seconds} s, ${injected.toLocaleString('en-US')} faults of ${String(all.length)} kinds.

${chapters.join('\n')}`
}

function tableOf(rows: readonly FaultNote[]): string {
  const line = (cells: readonly string[]): string =>
    `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`
  const body = rows.map(({ fault, injected, checked, found }) =>
    line([fault, injected.toLocaleString('en-US'), checked, found]),
  )
  return [line(['fault', 'injected', 'checked', 'found']), line(['---', '---:', '---', '---']), ...body].join('\n')
}
