import { Fragment, type ComponentChildren } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { dateTime, duration } from '../lib/format.ts'
import { toast } from './toast.tsx'

/** The status of a sandbox. Its colour repeats what the word says. */
export function Status({ status }: { readonly status: string }) {
  return <span class={`status ${status}`}>{status}</span>
}

/** How long ago something was. */
export function Ago({ at }: { readonly at: string | null | undefined }) {
  const [now, setNow] = useState(() => Date.now())
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 10_000)
    return () => clearInterval(timer)
  }, [])
  if (at === null || at === undefined) return <span class="faint">never</span>
  return (
    <time dateTime={at} title={dateTime(at)}>
      {duration(now - Date.parse(at))}
    </time>
  )
}

/** A text to copy, such as a command. */
export function Copy({ text, label }: { readonly text: string; readonly label: string }) {
  const copy = (): void => {
    navigator.clipboard.writeText(text).then(
      () => toast(`${label} copied`),
      () => toast('The browser refused to copy. Select the text.', { kind: 'failed' }),
    )
  }
  return (
    <div class="copy">
      <pre tabindex={0} aria-label={label}>
        {text}
      </pre>
      <button type="button" class="button small" onClick={copy} aria-label={`Copy: ${label}`}>
        Copy
      </button>
    </div>
  )
}

/** A line of recent values, the newest at the right, and the newest as text. */
export function Sparkline({
  values,
  max,
  text,
}: {
  readonly values: readonly number[]
  readonly max: number
  readonly text: string
}) {
  const top = Math.max(max, ...values, 1e-9)
  const points = values.map(
    (value, index) => `${String(60 - (values.length - 1 - index) * 3)},${(19 - (value / top) * 18).toFixed(1)}`,
  )
  return (
    <span class="sparkline">
      <svg viewBox="0 0 60 20" width="60" height="20" aria-hidden="true">
        <polyline points={points.join(' ')} />
      </svg>
      <span>{text}</span>
    </span>
  )
}

/** How much of a limit is used. */
export function Meter({
  label,
  used,
  limit,
  unit,
}: {
  readonly label: string
  readonly used: number
  readonly limit: number | null
  readonly unit: (value: number) => string
}) {
  const share = limit === null || limit === 0 ? 0 : Math.min(1, used / limit)
  const id = `meter-${label.replaceAll(/\W+/g, '-').toLowerCase()}`
  return (
    <div class="meter">
      <span id={id}>{label}</span>
      <meter aria-labelledby={id} min={0} max={1} low={0.8} high={0.95} optimum={0} value={share} />
      <span class="value">{limit === null ? `${unit(used)}, no limit` : `${unit(used)} of ${unit(limit)}`}</span>
    </div>
  )
}

/** Names with their values. Absent values are left out. */
export function Facts({ of }: { readonly of: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {of.map(([name, value]) =>
        value === null || value === undefined || value === '' ? null : (
          <Fragment key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </Fragment>
        ),
      )}
    </dl>
  )
}
