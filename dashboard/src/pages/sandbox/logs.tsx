import { useEffect, useRef, useState } from 'preact/hooks'
import { at, send, withQuery } from '../../lib/api.ts'
import { plain } from '../../lib/format.ts'
import { saveFile } from '../../lib/save-file.ts'
import type { LogLine } from '../../lib/types.ts'
import { attempt } from '../../ui/toast.tsx'
import type { TabParts } from './tabs.ts'

/** How many lines the page keeps. The log itself has more: download it. */
const LINES_MAX = 5_000
const FLUSH_MS = 100
const SOURCES = 'stdout,stderr,output,system'

/** What the sandbox wrote and writes. */
export default function Logs({ sandbox: { id, name, run_id } }: TabParts) {
  const [find, setFind] = useState('')
  const [isFollowing, setFollowing] = useState(true)
  const { lines, state } = useLog(id, run_id ?? null)
  const box = useRef<HTMLDivElement>(null)
  const shown = find === '' ? lines : lines.filter(({ text }) => text.toLowerCase().includes(find.toLowerCase()))
  useEffect(() => {
    if (isFollowing) box.current?.scrollTo(0, box.current.scrollHeight)
  }, [shown.length, isFollowing])
  const download = async (): Promise<void> => {
    const reply = await send('GET', at`/v1/sandboxes/${id}/logs`, { query: { follow: false, sources: SOURCES } })
    const events = (await reply.text())
      .split('\n\n')
      .flatMap((event) => /^data: (\{"source".*)$/m.exec(event)?.[1] ?? [])
    saveFile(`${name}.log`, events.map((data) => (JSON.parse(data) as LogLine).text).join(''))
  }
  return (
    <div class="stack">
      <div class="filters">
        <input
          type="search"
          aria-label="Find in the log"
          placeholder="Find"
          value={find}
          onInput={(event) => setFind(event.currentTarget.value)}
        />
        <label class="check">
          <input
            type="checkbox"
            checked={isFollowing}
            onChange={(event) => setFollowing(event.currentTarget.checked)}
          />
          Follow
        </label>
        <button type="button" class="button" onClick={() => attempt(download)}>
          Download
        </button>
        <span class="faint row" role="status">
          {find === '' ? state : `${String(shown.length)} lines match`}
        </span>
      </div>
      <div ref={box} class="log" role="log" aria-label="Log" aria-live="off" tabindex={0}>
        {shown.map(({ id: lineId, source, ts, text }) => (
          <div key={lineId} class={source}>
            <time dateTime={ts}>{ts.slice(11, 19)}</time>
            {text}
          </div>
        ))}
      </div>
    </div>
  )
}

type Line = LogLine & { readonly id: number }

/** The last lines of a log, and those that come. `runId`: a new run begins a new stream. */
function useLog(id: string, runId: string | null): { readonly lines: readonly Line[]; readonly state: string } {
  const [lines, setLines] = useState<readonly Line[]>([])
  const [state, setState] = useState('Connecting')
  useEffect(() => {
    if (runId === null) {
      setState('It has not run yet.')
      return
    }
    let news: Line[] = []
    let count = 0
    setLines([])
    const timer = setInterval(() => {
      if (news.length === 0) return
      const added = news
      news = []
      setLines((old) => [...old, ...added].slice(-LINES_MAX))
    }, FLUSH_MS)
    const source = new EventSource(
      withQuery(at`/v1/sandboxes/${id}/logs`, { tail: LINES_MAX, sources: SOURCES, follow_timeout: 3600 }),
    )
    source.addEventListener('open', () => setState('Live'))
    source.addEventListener('log', ({ data }: MessageEvent<string>) => {
      const line = JSON.parse(data) as LogLine
      count += 1
      news.push({ ...line, id: count, text: plain(line.text).trimEnd() })
    })
    source.addEventListener('end', () => {
      source.close()
      setState('Complete: the run has ended')
    })
    source.addEventListener('error', () => {
      setState(source.readyState === EventSource.CLOSED ? 'The log can not be read now' : 'Connecting again')
    })
    return () => {
      source.close()
      clearInterval(timer)
    }
  }, [id, runId])
  return { lines, state }
}
