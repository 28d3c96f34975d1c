import { useState } from 'preact/hooks'
import { runProgram } from '../../lib/agent-exec.ts'
import { withAgent } from '../../lib/agent.ts'
import { at, listAll, post, remove } from '../../lib/api.ts'
import { dateTime } from '../../lib/format.ts'
import { useLoad } from '../../lib/load.ts'
import { mayWrite } from '../../lib/session.ts'
import type { Preview } from '../../lib/types.ts'
import { Form, SelectField, TextField, type FormValues } from '../../ui/form.tsx'
import { Load } from '../../ui/load.tsx'
import { Section } from '../../ui/page.tsx'
import { Copy } from '../../ui/small.tsx'
import { Table } from '../../ui/table.tsx'
import { attempt } from '../../ui/toast.tsx'
import type { TabParts } from './tabs.ts'

const PORTS_REFRESH_MS = 5_000
const HOUR_MS = 3_600_000
const LIFETIMES = [
  { value: '1', label: 'for an hour' },
  { value: '24', label: 'for a day' },
  { value: '168', label: 'for a week' },
  { value: '', label: 'until revoked' },
] as const

/** Ports of the sandbox: who listens, and the links that open them in a browser. */
export default function Ports({ sandbox }: TabParts) {
  const { id, status, spec } = sandbox
  const previews = useLoad((signal) => listAll<Preview>(at`/v1/sandboxes/${id}/previews`, { signal }), [id])
  const [made, setMade] = useState<Preview | null>(null)
  const create = async (port: number, access: string, hours: string): Promise<Preview> => {
    const expires_at = hours === '' ? null : new Date(Date.now() + Number(hours) * HOUR_MS).toISOString()
    const preview = await post<Preview>(at`/v1/sandboxes/${id}/previews`, { port, access, expires_at })
    setMade(preview)
    previews.reload()
    return preview
  }
  const submit = (values: FormValues): Promise<unknown> =>
    create(Number(values.text('port')), values.text('access'), values.text('hours'))
  const published = spec?.network.ports ?? []
  return (
    <div class="stack">
      {made === null ? null : (
        <Section title={`Port ${String(made.port)} is open`}>
          <p class="faint">The link is shown once. Whoever has it may open the port.</p>
          <Copy text={made.url} label="Link" />
          <a class="button primary" href={made.url} target="_blank" rel="noreferrer noopener">
            Open port {made.port}
          </a>
        </Section>
      )}
      {status === 'running' && mayWrite.value ? (
        <Listening id={id} onOpen={(port) => create(port, 'link', '1')} />
      ) : null}
      {mayWrite.value ? (
        <Section title="Open a port">
          <Form action="Create link" onSubmit={submit}>
            <div class="columns">
              <TextField label="Port" name="port" type="number" value="8000" min={1} isRequired />
              <SelectField
                label="For whom"
                name="access"
                choices={[
                  { value: 'link', label: 'Whoever has the link' },
                  { value: 'public', label: 'Everybody' },
                ]}
              />
              <SelectField label="How long" name="hours" field="expires_at" choices={LIFETIMES} />
            </div>
          </Form>
        </Section>
      ) : null}
      <Section title="Open ports">
        <Load of={previews}>
          {(list) =>
            list.length === 0 ? (
              <p class="faint">None. A server in the sandbox may listen at any address; it needs no published port.</p>
            ) : (
              <Table
                label="Open ports"
                rows={list}
                keyOf={(preview) => preview.id}
                columns={[
                  { title: 'Port', cell: ({ port }) => port },
                  { title: 'For', cell: ({ access }) => (access === 'public' ? 'everybody' : 'whoever has the link') },
                  {
                    title: 'Address',
                    cell: ({ url }) => (
                      <a class="mono" href={url} target="_blank" rel="noreferrer noopener">
                        {url}
                      </a>
                    ),
                  },
                  { title: 'Ends', cell: ({ expires_at }) => (expires_at === null ? 'never' : dateTime(expires_at)) },
                  {
                    title: '',
                    cell: (preview) =>
                      mayWrite.value ? (
                        <button
                          type="button"
                          class="button small danger"
                          onClick={() =>
                            attempt(async () => {
                              await remove(at`/v1/sandboxes/${id}/previews/${preview.id}`)
                              previews.reload()
                            })
                          }
                        >
                          Close
                        </button>
                      ) : null,
                  },
                ]}
              />
            )
          }
        </Load>
      </Section>
      {published.length === 0 ? null : (
        <Section title="Published on the machine of the worker">
          <ul>
            {published.map(({ host_bind, host_port, guest_port, protocol }) => (
              <li key={`${protocol}${String(host_port)}`} class="mono">
                {host_bind}:{host_port} → {guest_port}/{protocol}
              </li>
            ))}
          </ul>
        </Section>
      )}
    </div>
  )
}

type ListeningProps = { readonly id: string; readonly onOpen: (port: number) => Promise<unknown> }

/** The ports at which programs of the sandbox listen now. */
function Listening({ id, onOpen }: ListeningProps) {
  const loaded = useLoad(() => withAgent(id, readPorts), [id], { everyMs: PORTS_REFRESH_MS })
  return (
    <Section title="Programs that listen">
      <Load of={loaded}>
        {(ports) =>
          ports.length === 0 ? (
            <p class="faint">None yet. Start a server in the terminal, such as python3 -m http.server 8000.</p>
          ) : (
            <div class="row">
              {ports.map((port) => (
                <button key={port} type="button" class="button" onClick={() => attempt(() => onOpen(port))}>
                  Open port {port}
                </button>
              ))}
            </div>
          )
        }
      </Load>
    </Section>
  )
}

/** The state of a listening socket in /proc/net/tcp. */
const LISTEN = '0A'

async function readPorts(agent: Parameters<typeof runProgram>[0]): Promise<readonly number[]> {
  const script =
    'while read -r line; do echo "$line"; done < /proc/net/tcp; while read -r line; do echo "$line"; done < /proc/net/tcp6'
  const text = await runProgram(agent, ['/bin/sh', '-c', script])
  const ports = text.split('\n').flatMap((line) => {
    const [, local = '', , state] = line.trim().split(/\s+/)
    return state === LISTEN ? [Number.parseInt(local.split(':')[1] ?? '', 16)] : []
  })
  return [...new Set(ports)].toSorted((a, b) => a - b)
}
