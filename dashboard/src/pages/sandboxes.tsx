import { useMemo, useState } from 'preact/hooks'
import { bytes, percent, words } from '../lib/format.ts'
import { address, setParameter } from '../lib/router.ts'
import { deleteAll, start, stop } from '../lib/sandbox-actions.ts'
import { useSandboxes } from '../lib/sandbox-list.ts'
import { mayWrite } from '../lib/session.ts'
import type { Sandbox } from '../lib/types.ts'
import { useUse, type Use } from '../lib/use-history.ts'
import { Loading } from '../ui/load.tsx'
import { Empty, Page } from '../ui/page.tsx'
import { Problem } from '../ui/problem.tsx'
import { Ago, Copy, Sparkline, Status } from '../ui/small.tsx'
import { Table, type Column } from '../ui/table.tsx'
import { attempt } from '../ui/toast.tsx'

const STATUSES = ['created', 'starting', 'running', 'stopping', 'stopped', 'failed'] as const
/** A label as `key=value`. */
const LABEL = /^([^=\s]+)=(.*)$/

/** The sandboxes of the organization, live. */
export default function Sandboxes() {
  const parameters = address.value.searchParams
  const [text, status] = [parameters.get('find') ?? '', parameters.get('status') ?? '']
  const label = LABEL.exec(text)
  const labels = label === null ? '' : JSON.stringify({ [label[1] ?? '']: label[2] ?? '' })
  const { sandboxes, isComplete, error, reload } = useSandboxes(labels)
  const use = useUse()
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set())
  const shown = useMemo(
    () => sandboxes.filter((one) => (status === '' || one.status === status) && (labels !== '' || matches(one, text))),
    [sandboxes, status, text, labels],
  )
  const isFirstRun = isComplete && sandboxes.length === 0 && text === ''
  return (
    <Page
      title="Sandboxes"
      actions={
        mayWrite.value ? (
          <a class="button primary" href="/sandboxes/new">
            New sandbox
          </a>
        ) : null
      }
    >
      {error === null ? null : <Problem error={error} onRetry={reload} />}
      {isFirstRun ? <FirstRun /> : <Filters text={text} status={status} />}
      {mayWrite.value && chosen.size > 0 ? (
        <BulkActions chosen={sandboxes.filter(({ id }) => chosen.has(id))} onDone={() => setChosen(new Set())} />
      ) : null}
      {sandboxes.length === 0 && !isComplete && error === null ? <Loading /> : null}
      {isComplete && !isFirstRun && shown.length === 0 ? (
        <Empty title="No sandbox matches">
          <p>Change the filter. A label is written as key=value, such as team=web.</p>
        </Empty>
      ) : null}
      {shown.length === 0 ? null : (
        <Table
          label="Sandboxes"
          rows={shown}
          columns={columnsOf(use)}
          keyOf={({ id }) => id}
          {...(mayWrite.value ? { chosen, onChoose: setChosen } : {})}
        />
      )}
    </Page>
  )
}

function matches({ name, slug, spec }: Sandbox, text: string): boolean {
  return [name, slug, spec?.image ?? ''].some((one) => one.toLowerCase().includes(text.toLowerCase()))
}

function Filters({ text, status }: { readonly text: string; readonly status: string }) {
  return (
    <div class="filters" role="search">
      <input
        type="search"
        aria-label="Find by name, image or label"
        placeholder="Name, image, or label=value"
        value={text}
        onInput={(event) => setParameter('find', event.currentTarget.value)}
      />
      <select
        aria-label="Status"
        value={status}
        onChange={(event) => setParameter('status', event.currentTarget.value)}
      >
        <option value="">Any status</option>
        {STATUSES.map((one) => (
          <option key={one} value={one}>
            {words(one)}
          </option>
        ))}
      </select>
    </div>
  )
}

function columnsOf(use: ReadonlyMap<string, Use>): readonly Column<Sandbox>[] {
  return [
    {
      title: 'Name',
      cell: ({ id, name, slug }) => (
        <span>
          <a href={`/sandboxes/${id}`}>{name}</a>
          {slug === name ? null : <span class="reason">{slug}</span>}
        </span>
      ),
    },
    { title: 'Status', cell: (sandbox) => <StatusWithReason sandbox={sandbox} /> },
    { title: 'Image', cell: ({ spec }) => <span class="mono">{spec?.image ?? '–'}</span> },
    { title: 'Age', cell: ({ created_at }) => <Ago at={created_at} />, isNumber: true },
    { title: 'Processor', cell: ({ id }) => <Processor use={use.get(id)} /> },
    { title: 'Memory', cell: ({ id }) => <Memory use={use.get(id)} /> },
  ]
}

function StatusWithReason({ sandbox }: { readonly sandbox: Sandbox }) {
  const { status, status_reason, last_failure_message } = sandbox
  const reason = status === 'failed' ? last_failure_message : status === 'starting' ? status_reason : null
  return (
    <span>
      <Status status={status} />
      {reason === null || reason === undefined ? null : (
        <span class="reason">{status === 'failed' ? reason : words(reason)}</span>
      )}
    </span>
  )
}

function Processor({ use }: { readonly use: Use | undefined }) {
  if (use === undefined) return <span class="faint">–</span>
  return <Sparkline values={use.cpu} max={use.vcpus} text={percent(use.cpu.at(-1) ?? 0)} />
}

function Memory({ use }: { readonly use: Use | undefined }) {
  if (use === undefined) return <span class="faint">–</span>
  return <Sparkline values={use.memory} max={use.memoryBytes} text={bytes(use.memory.at(-1) ?? 0)} />
}

function BulkActions({ chosen, onDone }: { readonly chosen: readonly Sandbox[]; readonly onDone: () => void }) {
  const act = (work: (some: readonly Sandbox[]) => Promise<unknown>) => () =>
    attempt(async () => {
      if ((await work(chosen)) !== false) onDone()
    })
  return (
    <div class="bulk" role="group" aria-label="Chosen sandboxes">
      <strong>{chosen.length} chosen</strong>
      <button type="button" class="button small" onClick={act(start)}>
        Start
      </button>
      <button type="button" class="button small" onClick={act(stop)}>
        Stop
      </button>
      <button type="button" class="button small danger" onClick={act(deleteAll)}>
        Delete
      </button>
      <button type="button" class="button small" onClick={onDone}>
        Clear
      </button>
    </div>
  )
}

/** What a new organization sees: what a sandbox is, and the way to the first one. */
function FirstRun() {
  return (
    <Empty title="Start your first sandbox">
      <p>
        A sandbox is a small isolated machine: an image, a disk, limits and a network policy. Programs of others, or of
        a model, run in it and reach nothing that you did not allow.
      </p>
      {mayWrite.value ? (
        <>
          <a class="button primary" href="/sandboxes/new">
            New sandbox
          </a>
          <p>Or from a terminal, with a key of the page Keys:</p>
          <Copy
            text={`export MSB_API_URL=${location.origin} MSB_API_KEY=…\nnpx msb run localhost/demo -- echo hello`}
            label="Commands"
          />
        </>
      ) : (
        <p>Your role can look and not change. Ask an owner for the role of a member.</p>
      )}
    </Empty>
  )
}
