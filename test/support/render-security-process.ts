import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describeMachine } from '../../bench/support/machine.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { TARGETS, type AttackRecord } from './security-attack.ts'

// RECORDS-FOLDER FILE: writes the report from the records of the attacks. `npm run test:security -- --report` calls it.

const [folder = '', file = ''] = process.argv.slice(2)
const records = readRecords(folder)
if (records.length === 0) throw new Error('no attack was recorded')
const { stdout: commit } = await runCommand('git', ['rev-parse', '--short', 'HEAD'], { timeoutMs: 10_000 })
writeFileSync(file, render(records, commit.trim()))
process.stdout.write(`${file}: ${String(records.length)} attacks\n`)

function readRecords(from: string): readonly AttackRecord[] {
  return readdirSync(from)
    .toSorted()
    .flatMap((name) => readFileSync(join(from, name), 'utf8').trimEnd().split('\n'))
    .map((line) => JSON.parse(line))
}

function render(all: readonly AttackRecord[], commit: string): string {
  const tried = all.filter(({ isHeld }) => isHeld !== null)
  const tries = tried.reduce((sum, { tries: count }) => sum + (count ?? 0), 0)
  const chapters = Object.entries(TARGETS).flatMap(([target, title]) => {
    const rows = all.filter((row) => row.target === target)
    return rows.length === 0 ? [] : [`## ${title}\n\n${tableOf(rows)}\n`]
  })
  const day = systemClock.now().toISOString().slice(0, 10)
  return `# Security report

\`npm run test:security -- --report\` makes this page from its own run; don't edit it. Each row is one attack on a real system.
\`finding\` is its number in the report of the first attack on this project. A test fails if its attack succeeds.

${day}, commit ${commit}, ${describeMachine()}; ${String(tried.length)} attacks, ${tries.toLocaleString('en-US')} tries.

${chapters.join('\n')}`
}

function tableOf(rows: readonly AttackRecord[]): string {
  const line = (cells: readonly string[]): string =>
    `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`
  const body = rows.map((row) =>
    line([
      row.finding === null ? '' : String(row.finding),
      row.name,
      row.attacker,
      row.runtime ?? '',
      row.tries === undefined ? '' : row.tries.toLocaleString('en-US'),
      outcomeOf(row),
    ]),
  )
  const head = ['finding', 'attack', 'attacker', 'runtime', 'tries', 'outcome']
  return [line(head), line(['---:', '---', '---', '---', '---:', '---']), ...body].join('\n')
}

function outcomeOf({ isHeld, outcome, skip }: AttackRecord): string {
  if (isHeld === null) return `not tried: ${skip ?? 'no reason given'}`
  return isHeld ? `held: ${outcome ?? ''}` : '**succeeded**'
}
