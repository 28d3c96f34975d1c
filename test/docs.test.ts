import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { basename, join, relative } from 'node:path'
import { test } from 'node:test'
import { settingRows } from '../src/config.ts'
import { CHANNEL_ENDS } from '../src/contract/sandboxes/channel-ends.ts'
import { EVENT_TYPES } from '../src/domain/events/event-types.ts'
import { CAUSES } from '../src/domain/sandboxes/lifecycle.ts'
import { ABILITIES_TABLE } from '../src/domain/spec/required-abilities.ts'
import { CLAIM_ABILITIES, KUBERNETES_ABILITIES, NETWORK_ABILITIES } from '../src/worker/drivers/kubernetes/probe.ts'
import { MICROSANDBOX_ABILITIES } from '../src/worker/drivers/microsandbox/make-vm-config.ts'
import { OCI_ABILITIES } from '../src/worker/drivers/oci/run/runtime/probe.ts'
import { readStoredResults, renderStored } from '../bench/support/stored-results.ts'
import { refusedBodyRows, requestRows } from './support/captured-outcomes.ts'
import { clientErrorRows } from './support/client-errors.ts'
import { listMetrics } from './support/metrics.ts'
import { assertNone, checkSection, documents, proseOf, readDocument, ROOT, table } from './support/documents.ts'

// Tables of the documents that are generated from the code. `UPDATE_DOCS=1 npm test -- test/docs.test.ts` rewrites them.

const settings = table([
  ['variable', 'flag', 'default', 'unit', 'meaning'],
  ['---', '---', '---', '---', '---'],
  ...settingRows().map(([variable, flag, fallback, unit, meaning]) => [
    `\`${variable}\``,
    flag === '' ? '' : `\`${flag}\``,
    fallback === '' ? '' : `\`${fallback}\``,
    unit,
    meaning,
  ]),
])

const abilities = table([
  ['field', '`oci`', '`microsandbox`', '`kubernetes`', 'what it requests'],
  ['---', '---', '---', '---', '---'],
  ...ABILITIES_TABLE.map(({ ability, fields, meaning }) => [
    fields,
    ...[
      OCI_ABILITIES,
      MICROSANDBOX_ABILITIES,
      [...KUBERNETES_ABILITIES, ...CLAIM_ABILITIES, ...NETWORK_ABILITIES.rules],
    ].map((offered) => (offered.includes(ability) ? 'enforced' : '**refused**')),
    meaning.replace(/^needs a worker that is capable of /, ''),
  ]),
])

const events = table([
  ['type', 'category', 'what happened', 'payload'],
  ['---', '---', '---', '---'],
  ...Object.entries(EVENT_TYPES).map(([type, { category, what, facts }]) => [
    `\`${type}\``,
    category,
    what,
    Object.entries(facts)
      .map(([name, kind]) => `\`${name}\` ${kind.replace(/\?$/, (mark) => (mark === '' ? '' : ', may be absent'))}`)
      .join('; '),
  ]),
])

const causes = table([
  ['cause', 'meaning'],
  ['---', '---'],
  ...Object.entries(CAUSES).map(([cause, meaning]) => [`\`${cause}\``, meaning]),
])

const channelEnds = table([
  ['code', 'reason', '`why`'],
  ['---', '---', '---'],
  ...Object.entries(CHANNEL_ENDS)
    .toSorted(([, a], [, b]) => a.code - b.code)
    .map(([why, { code, reason }]) => [String(code), reason, `\`${why}\``]),
])

test('the table of docs/performance.md is that of the recorded results', async () => {
  checkSection('docs/performance.md', 'results', renderStored(await readStoredResults()))
})

test('docs/settings.md lists every setting as the program reads it', () => {
  checkSection('docs/settings.md', 'settings', settings)
})

test('docs/drivers.md says for every ability which drivers enforce it and which refuse it', () => {
  checkSection('docs/drivers.md', 'abilities', abilities)
})

test('docs/metrics.md lists every metric with its labels and the processes that show it', async () => {
  const rows = (await listMetrics()).map(({ name, type, labels, shownBy, help }) => [
    `\`${name}\``,
    type,
    labels.map((label) => `\`${label}\``).join(', '),
    shownBy,
    help,
  ])
  const head = ['metric', 'type', 'labels', 'shown by', 'meaning']
  checkSection('docs/metrics.md', 'metrics', table([head, head.map(() => '---'), ...rows]))
})

test('docs/metrics.md lists every alert, and the tests of the rules make each of them fire', () => {
  const alerts = readDocument('packaging/prometheus/sandyard.rules.yml')
    .split(/^ *- alert: /m)
    .slice(1)
  const read = (text: string, key: RegExp): string => key.exec(text)?.[1] ?? assert.fail(`no ${key.source} in ${text}`)
  const tests = readDocument('packaging/prometheus/sandyard.rules.test.yml')
  const rows = alerts.map((text) => {
    const name = read(text, /^(\w+)/)
    assert.ok(tests.includes(`alertname="${name}"`), `${name} never fires in sandyard.rules.test.yml`)
    const [page = '', heading] = read(text, /runbook: '(.*)'/).split('#')
    const link = relative('docs', page)
    assert.ok(existsSync(join(ROOT, page)), `${name} links to ${page}, which is no page`)
    const title = heading ?? basename(page, '.md')
    const target = link === 'metrics.md' ? `#${title}` : `${link}${heading === undefined ? '' : `#${heading}`}`
    const what = read(text, /description: '(.*)'/)
    return [`\`${name}\``, read(text, /severity: (\w+)/), what, `[${title.replaceAll('-', ' ')}](${target})`]
  })
  const head = ['alert', 'severity', 'what to do', 'more']
  checkSection('docs/metrics.md', 'alerts', table([head, head.map(() => '---'), ...rows]))
})

test('docs/events.md lists every type of audit event with the facts of its payload', () => {
  checkSection('docs/events.md', 'events', events)
})

test('docs/events.md lists every cause of a transition', () => {
  checkSection('docs/events.md', 'causes', causes)
})

test('docs/channels.md lists every end of a channel with its code', () => {
  checkSection('docs/channels.md', 'channel-ends', channelEnds)
})

test('docs/clients.md says for every error code which error the public clients show', () => {
  const head = ['code', 'status', 'error of the clients']
  checkSection('docs/clients.md', 'client-errors', table([head, head.map(() => '---'), ...clientErrorRows()]))
})

test('docs/clients.md says which recorded requests of the public clients are refused, and for which field', () => {
  const bodies = ['refused for', 'bodies', 'which']
  checkSection('docs/clients.md', 'bodies', table([bodies, bodies.map(() => '---'), ...refusedBodyRows()]))
  const requests = ['request', 'what becomes of it']
  checkSection('docs/clients.md', 'requests', table([requests, requests.map(() => '---'), ...requestRows()]))
})

test('the tables of limits show the defaults that the settings have', () => {
  const defaults = new Map(settingRows().map(([variable, , fallback]) => [variable, fallback]))
  const faults = ['docs/limits.md', 'docs/channels.md'].flatMap((path) =>
    readDocument(path)
      .split('\n')
      .filter((row) => row.startsWith('|'))
      .flatMap((row) => {
        const shown = new Set(row.replaceAll(/(?<=\d),(?=\d{3})/g, '').match(/\d+/g))
        const variables = [...row.matchAll(/`(SANDYARD_\w+)`/g)].map(([, variable = '']) => variable)
        return variables.filter((name) => !shown.has(defaults.get(name) ?? '')).map((name) => `${path}: ${name}`)
      }),
  )
  assertNone(faults, 'another default')
})

test('every decision is listed in the index of decisions', () => {
  const index = readDocument('docs/decisions/README.md')
  const pages = documents().filter((path) => /^docs\/decisions\/\d{4}-/.test(path))
  assertNone(
    pages.filter((path) => !index.includes(`](${basename(path)})`)),
    'not in docs/decisions/README.md',
  )
})

test('the README is short, and so is the glossary', () => {
  const lines = readDocument('README.md').split('\n').length
  assert.ok(lines <= 130, `README.md has ${String(lines)} lines; at most 130: the rest belongs in docs/guide`)
  const [, glossary = ''] = readDocument('ARCHITECTURE.md').split(/^## Glossary$/m)
  const rows = (glossary.split(/^## /m)[0] ?? '').split('\n').filter((row) => row.startsWith('| ')).length - 2
  assert.ok(rows > 0 && rows <= 40, `the glossary has ${String(rows)} rows; at most 40: use the field's own words`)
})

/** The maximum number of words in a sentence of a document. Most sentences have at most 25. */
const SENTENCE_LIMIT_WORDS = 28

test(`no sentence of a document has more than ${String(SENTENCE_LIMIT_WORDS)} words`, () => {
  const faults = documents()
    .filter((path) => path !== 'docs/reliability.md') // generated from notes of the tests
    .flatMap((path) =>
      sentencesOf(proseOf(readDocument(path)))
        .filter((sentence) => sentence.split(/\s+/).length > SENTENCE_LIMIT_WORDS)
        .map((sentence) => `${path}: ${sentence}`),
    )
  assertNone(faults, 'too long')
})

/** The sentences of paragraphs and list items, without tables, headings and comments. A colon also ends a sentence. */
function sentencesOf(prose: string): readonly string[] {
  return prose
    .replaceAll(/<!--.*?-->/gs, '')
    .split(/\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)/)
    .filter((paragraph) => !/^\s*[|#]/.test(paragraph))
    .flatMap((paragraph) =>
      paragraph
        .replaceAll(/\s+/g, ' ')
        .trim()
        .split(/(?<=[.!?:][)*_"`]*) (?=[A-Z`*_[("0-9])|: /),
    )
}
