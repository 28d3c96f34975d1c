import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { colour, theme } from '../lib/theme.ts'

export type Series = { readonly label: string; readonly values: readonly (number | null)[] }

type PlotProps = {
  readonly title: string
  /** Seconds since 1970. */
  readonly times: readonly number[]
  readonly series: readonly Series[]
  readonly unit: (value: number) => string
  readonly isBars?: boolean
  /** The first and the last time that it shows. Absent: those of the values. */
  readonly range?: readonly [number, number]
}

const HEIGHT_PX = 170

/** The text of a tick, by the time between two. */
function timeText(secs: number, stepSecs: number): string {
  const options =
    stepSecs >= 86_400
      ? { day: 'numeric', month: 'short' }
      : { hour: '2-digit', minute: '2-digit', ...(stepSecs < 60 ? { second: '2-digit' } : {}) }
  return new Date(secs * 1000).toLocaleString('en-GB', options as Intl.DateTimeFormatOptions)
}

/** A plot over time. Its text says the newest values, for those who don't see it. */
export function Plot({ title, times, series, unit, isBars = false, range }: PlotProps) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const labels = series.map(({ label }) => label).join()
  const scheme = theme.value
  const shown = useRef(range)
  shown.current = range
  useEffect(() => {
    const element = box.current
    if (element === null) return
    const [line, text] = [colour('line'), colour('faint')]
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: '11px system-ui' }
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT_PX,
        cursor: { y: false },
        legend: { show: false },
        scales: {
          x: { range: (_plot, min, max) => [...(shown.current ?? [min, max])] },
          y: { range: (_plot, _min, max) => [0, Math.max(max * 1.1, 1e-9)] },
        },
        axes: [
          {
            ...axis,
            space: 70,
            values: (_plot, ticks, _axis, _space, step) => ticks.map((tick) => timeText(tick, step)),
          },
          { ...axis, size: 68, values: (_plot, ticks) => ticks.map(unit) },
        ],
        series: [
          {},
          ...series.map(({ label }, index) => ({
            label,
            stroke: colour(`plot-${String(index + 1)}`),
            width: 1.5,
            points: { show: false },
            ...(isBars
              ? { paths: uPlot.paths.bars?.({ size: [0.7, 40] }), fill: colour(`plot-${String(index + 1)}`) }
              : {}),
          })),
        ],
      } as uPlot.Options, // `paths` is absent or set, which uPlot's types don't allow
      [[], ...series.map(() => [])],
      element,
    )
    plot.current = made
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT_PX }))
    observer.observe(element)
    return () => {
      observer.disconnect()
      made.destroy()
    }
  }, [labels, scheme, isBars])
  useEffect(
    () => plot.current?.setData([[...times], ...series.map(({ values }) => [...values])]),
    [times, series, scheme],
  )
  const now = series.map(({ label, values }) => `${label} ${unit(values.findLast((value) => value !== null) ?? 0)}`)
  return (
    <figure class="plot" aria-label={title}>
      <figcaption class="row">
        <strong>{title}</strong>
        <span class="faint">{now.join(', ')}</span>
      </figcaption>
      <div ref={box} class="plot-box" aria-hidden="true" />
    </figure>
  )
}
