import { FitAddon } from '@xterm/addon-fit'
import { Terminal } from '@xterm/xterm'
import '@xterm/xterm/css/xterm.css'
import { useLayoutEffect, useRef, useState } from 'preact/hooks'
import { openAgent } from '../../lib/agent.ts'
import { startShell } from '../../lib/agent-exec.ts'
import { withStyleSheets } from '../../lib/style-sheets.ts'
import { Empty } from '../../ui/page.tsx'
import type { TabParts } from './tabs.ts'

const COLOURS = { background: '#16130e', foreground: '#f1ece3', cursor: '#f0a355', selectionBackground: '#6b5a3c' }
const SCROLLBACK_LINES = 5_000

/** Terminals in the sandbox, each with a shell of its own. They end with this page. */
export default function Terminals({ sandbox }: TabParts) {
  const [ids, setIds] = useState<readonly number[]>([1])
  const [current, setCurrent] = useState(1)
  if (sandbox.status !== 'running')
    return (
      <Empty title="The sandbox does not run">
        <p>Start it, and its terminal opens here.</p>
      </Empty>
    )
  const add = (): void => {
    const id = Math.max(0, ...ids) + 1
    setIds([...ids, id])
    setCurrent(id)
  }
  const close = (id: number): void => {
    const left = ids.filter((one) => one !== id)
    setIds(left)
    if (current === id) setCurrent(left.at(-1) ?? 0)
  }
  return (
    <div class="stack">
      <div class="row" role="group" aria-label="Terminals">
        {ids.map((id) => (
          <span key={id} class="row">
            <button type="button" class="button small" aria-pressed={id === current} onClick={() => setCurrent(id)}>
              Terminal {id}
            </button>
            <button
              type="button"
              class="icon-button"
              aria-label={`Close terminal ${String(id)}`}
              onClick={() => close(id)}
            >
              ×
            </button>
          </span>
        ))}
        <button type="button" class="button small" onClick={add}>
          New terminal
        </button>
      </div>
      {ids.map((id) => (
        <OneTerminal key={id} sandboxId={sandbox.id} name={`Terminal ${String(id)}`} isShown={id === current} />
      ))}
    </div>
  )
}

type OneProps = { readonly sandboxId: string; readonly name: string; readonly isShown: boolean }

function OneTerminal({ sandboxId, name, isShown }: OneProps) {
  const box = useRef<HTMLDivElement>(null)
  const [end, setEnd] = useState<string | null>(null)
  const [round, setRound] = useState(0)
  // Before the next paint, so that nobody types into a terminal whose shell has ended.
  useLayoutEffect(() => {
    const element = box.current
    if (element === null) return
    const terminal = new Terminal({
      scrollback: SCROLLBACK_LINES,
      theme: COLOURS,
      fontSize: 13,
      cursorBlink: false,
      screenReaderMode: false,
      linkHandler: null,
    })
    const fit = new FitAddon()
    terminal.loadAddon(fit)
    const removeStyles = withStyleSheets(() => terminal.open(element))
    const agent = openAgent(sandboxId)
    const resizing = new ResizeObserver(() => {
      if (element.clientWidth > 0) fit.fit()
    })
    const connected = agent.ready.then(() => {
      fit.fit()
      const { rows, cols } = terminal
      const shell = startShell(
        agent,
        { rows, cols },
        {
          onOutput: (data) => terminal.write(data),
          onEnd: (why) => {
            setEnd(why)
            agent.close()
          },
        },
      )
      terminal.onResize((size) => shell.resize(size.rows, size.cols))
      resizing.observe(element)
      return shell
    })
    connected.catch((error: unknown) => setEnd(error instanceof Error ? error.message : String(error)))
    // What is typed before the shell has started reaches it afterwards.
    const send = (data: Uint8Array): void => void connected.then((shell) => shell.write(data)).catch(() => undefined)
    const encoder = new TextEncoder()
    terminal.onData((text) => send(encoder.encode(text)))
    terminal.onBinary((text) => send(Uint8Array.from(text, (letter) => letter.charCodeAt(0))))
    terminal.focus()
    return () => {
      resizing.disconnect()
      agent.close()
      terminal.dispose()
      removeStyles()
    }
  }, [sandboxId, round])
  const again = (): void => {
    setEnd(null)
    setRound(round + 1)
  }
  return (
    <div hidden={!isShown} class="stack">
      {end === null ? null : (
        <div class="notice row" role="status">
          <span>The terminal ended: {end}</span>
          <button type="button" class="button small" onClick={again}>
            Connect again
          </button>
        </div>
      )}
      <section class="terminal-box" aria-label={name}>
        <div ref={box} />
      </section>
    </div>
  )
}
