import { useEffect } from 'preact/hooks'
import { at, get } from '../../lib/api.ts'
import { followEvents } from '../../lib/events.ts'
import { useLoad } from '../../lib/load.ts'
import { go } from '../../lib/router.ts'
import { deleteAll, start, stop } from '../../lib/sandbox-actions.ts'
import { sandboxIdOf } from '../../lib/sandbox-list.ts'
import { mayWrite } from '../../lib/session.ts'
import type { Sandbox } from '../../lib/types.ts'
import { Lazy } from '../../ui/lazy.tsx'
import { Load } from '../../ui/load.tsx'
import { Empty, Page } from '../../ui/page.tsx'
import { Status } from '../../ui/small.tsx'
import { attempt } from '../../ui/toast.tsx'
import { TABS } from './tabs.ts'

/** A sandbox: its status, what can be done with it, and its tabs. */
export default function SandboxPage({ id = '', tab = '' }: { readonly id?: string; readonly tab?: string }) {
  const loaded = useLoad((signal) => get<Sandbox>(at`/v1/sandboxes/${id}`, { signal }), [id], { everyMs: 15_000 })
  useEffect(
    () =>
      followEvents(({ payload }) => {
        if (sandboxIdOf(payload) === id) loaded.reload()
      }),
    [id],
  )
  return (
    <Load of={loaded}>
      {(sandbox) => (
        <Page
          title={sandbox.name}
          heading={
            <>
              {sandbox.name} <Status status={sandbox.status} />
            </>
          }
          lead={<span class="mono">{sandbox.spec?.image}</span>}
          actions={mayWrite.value ? <Actions sandbox={sandbox} /> : null}
        >
          <Explanation sandbox={sandbox} />
          <nav class="tabs" aria-label="Parts of the sandbox">
            {TABS.filter(({ needs }) => needs !== 'write' || mayWrite.value).map(({ name, title }) => (
              <a
                key={name}
                href={`/sandboxes/${id}${name === '' ? '' : `/${name}`}`}
                aria-current={name === tab ? 'page' : undefined}
              >
                {title}
              </a>
            ))}
          </nav>
          <Tab name={tab} sandbox={sandbox} />
        </Page>
      )}
    </Load>
  )
}

function Tab({ name, sandbox }: { readonly name: string; readonly sandbox: Sandbox }) {
  const tab = TABS.find((one) => one.name === name)
  if (tab === undefined) return <Empty title="No such part">The address may be mistyped.</Empty>
  return <Lazy key={name} load={tab.load} parts={{ sandbox }} />
}

/** Why the sandbox waits or failed, in the words of the API. */
function Explanation({
  sandbox: { status, status_reason, status_details, last_failure_message },
}: {
  readonly sandbox: Sandbox
}) {
  if (status === 'failed' && (last_failure_message ?? null) !== null)
    return <div class="problem">It failed: {last_failure_message}</div>
  if (status !== 'starting' || status_reason === null || status_reason === undefined) return null
  const missing = status_details?.missing ?? []
  return (
    <div class="notice">
      <p>
        It waits: {status_reason.replaceAll('_', ' ')}
        {status_details === null || status_details === undefined
          ? ''
          : `, number ${String(status_details.position)} of ${String(status_details.waiting)}`}
        .
      </p>
      {missing.map(({ name, requested, largest_free, accepted }) => (
        <p key={name}>
          {name}: {requested} requested,{' '}
          {largest_free === null ? (accepted ?? 'no worker has it') : `at most ${String(largest_free)} free`}
        </p>
      ))}
    </div>
  )
}

function Actions({ sandbox }: { readonly sandbox: Sandbox }) {
  const isOpen = ['starting', 'running', 'stopping'].includes(sandbox.status)
  const removeIt = async (): Promise<void> => {
    if (await deleteAll([sandbox])) go('/')
  }
  return (
    <>
      {isOpen ? (
        <button
          type="button"
          class="button"
          disabled={sandbox.status === 'stopping'}
          onClick={() => attempt(() => stop([sandbox]))}
        >
          Stop
        </button>
      ) : (
        <button type="button" class="button primary" onClick={() => attempt(() => start([sandbox]))}>
          Start
        </button>
      )}
      <button type="button" class="button danger" onClick={() => attempt(removeIt)}>
        Delete
      </button>
    </>
  )
}
