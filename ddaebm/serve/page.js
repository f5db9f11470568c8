
'use strict';

// The live page: asks the server what there is every two seconds and shows it. Nothing comes from
// elsewhere.
const $ = (id) => document.getElementById(id);
const kPoll = 2000, kParticles = 1200, kPictures = 36, kFilm = 40, kKept = 50;
const still = matchMedia('(prefers-reduced-motion: reduce)').matches;

let run = null;        // what /v1/model said last
let landscape = null;  // {times, side, maps}
let path = null;       // of 2-D data: x_T ... x_0 as arrays of points
let picture = null;    // of images: the steps one below the other
let steps = 0;         // how many there are
let place = 0;         // between 0, noise, and `steps`, samples
let playing = false, seed = 1;
let cursor = [0.5, 0.5], cursorShown = false;
const marks = [];      // what was scored, newest first

// ---- the server

let token = sessionStorage.getItem('token') || '';

async function ask(url, options = {}) {
  const headers = token ? {Authorization: 'Bearer ' + token} : {};
  const answer = await fetch(url, {...options, headers});
  if (answer.status === 401) {
    if (!$('token-box').open) $('token-box').showModal();
    throw new Error('a token is needed');
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.error || 'status ' + answer.status);
  }
  return answer;
}

$('token-form').addEventListener('submit', () => {
  token = $('token').value;
  sessionStorage.setItem('token', token);
  look();
});

const post = (url, body) => ask(url, {method: 'POST', body});

function say(text) { $('said').textContent = text; }

// ---- numbers

const compact = new Intl.NumberFormat('en', {maximumSignificantDigits: 4});
const whole = new Intl.NumberFormat('en');
function short(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : compact.format(value);
}

function quantile(values, q) {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
}

// float32 of an .npy file, version 1.
function readNpy(buffer) {
  const length = new DataView(buffer).getUint16(8, true);
  const header = new TextDecoder().decode(new Uint8Array(buffer, 10, length));
  const shape = /\(([^)]*)\)/.exec(header)[1].split(',').filter((s) => s.trim()).map(Number);
  return {shape, values: new Float32Array(buffer.slice(10 + length))};
}

// ---- the map of a 2-D model

const kViridis = [[68, 1, 84], [72, 37, 118], [65, 68, 135], [53, 96, 141], [42, 120, 142], [33, 144, 140],
  [34, 168, 132], [67, 191, 113], [122, 209, 81], [187, 223, 39], [253, 231, 37]];

function shade(v) {
  const at = Math.min(Math.max(v, 0), 1) * (kViridis.length - 1);
  const below = Math.min(Math.floor(at), kViridis.length - 2), f = at - below;
  return kViridis[below].map((c, i) => c + f * (kViridis[below + 1][i] - c));
}

// A canvas of side x side pixels for each time.
function paintMaps(values, times, side, tone) {
  const maps = [];
  for (let t = 0; t < times; ++t) {
    const e = values.subarray(t * side * side, (t + 1) * side * side);
    const finite = e.filter(Number.isFinite);
    // A single peak does not darken the rest.
    const top = quantile(finite, 0.995), low = quantile(finite, 0.05);
    const depth = Math.min(Math.max(top - low, 1e-6), 14);
    const canvas = new OffscreenCanvas(side, side), context = canvas.getContext('2d');
    const image = context.createImageData(side, side);
    for (let i = 0; i < side * side; ++i) {
      const v = tone === 'density' ? Math.sqrt(Math.exp(Math.min(e[i] - top, 0))) : 1 + (e[i] - top) / depth;
      const to = 4 * ((side - 1 - Math.floor(i / side)) * side + i % side);
      const [r, g, b] = shade(Number.isFinite(v) ? v : 0);
      image.data.set([r, g, b, 255], to);
    }
    context.putImageData(image, 0, 0);
    maps.push(canvas);
  }
  return maps;
}

// Points in the window's units, y upwards.
function toCanvas(point, size) {
  const {x, y} = run.model.window;
  return [(point[0] - x[0]) / (x[1] - x[0]) * size, (1 - (point[1] - y[0]) / (y[1] - y[0])) * size];
}
function fromShare([u, v]) {
  const {x, y} = run.model.window;
  return [x[0] + u * (x[1] - x[0]), y[0] + (1 - v) * (y[1] - y[0])];
}

function ease(f) { return f * f * (3 - 2 * f); }

function drawPlane(context, size, at, full) {
  const k = Math.min(Math.floor(at), steps), f = k < steps ? ease(at - k) : 0;
  // Points x_t lie on the map of time t; of x_T, pure noise, there is none.
  const mapOf = (i) => landscape.maps[Math.min(landscape.times - 1, Math.max(0, steps - i))];
  context.imageSmoothingQuality = 'high';
  context.fillStyle = '#440154';
  context.fillRect(0, 0, size, size);
  const lay = (i, alpha) => {
    context.globalAlpha = alpha * (i === 0 && steps > 0 ? 0.35 : 1);
    context.drawImage(mapOf(i), 0, 0, size, size);
  };
  lay(k, 1);
  if (f > 0) lay(k + 1, f);
  context.globalAlpha = 1;
  if (path) {
    const from = path[Math.min(k, path.length - 1)], to = path[Math.min(k + 1, path.length - 1)];
    const dot = Math.max(1.5, size / 300);
    context.fillStyle = 'rgb(255 255 255 / .62)';
    from.forEach((p, i) => {
      const q = to[i];
      const [x, y] = toCanvas([p[0] + f * (q[0] - p[0]), p[1] + f * (q[1] - p[1])], size);
      context.fillRect(x - dot / 2, y - dot / 2, dot, dot);
    });
  }
  if (full) drawMarks(context, size);
}

function drawMarks(context, size) {
  const unit = size / 640;
  const twice = (draw) => {
    context.strokeStyle = '#10131a';
    context.lineWidth = 5 * unit;
    draw();
    context.strokeStyle = '#fff';
    context.lineWidth = 2.2 * unit;
    draw();
  };
  // In: a ring. Out: a cross. The newest is larger.
  marks.filter((m) => m.point).forEach((mark, i) => {
    const [x, y] = toCanvas(mark.point, size), r = (i === 0 ? 9 : 6) * unit;
    twice(() => {
      context.beginPath();
      if (mark.answer === 'out') {
        context.moveTo(x - r, y - r); context.lineTo(x + r, y + r);
        context.moveTo(x - r, y + r); context.lineTo(x + r, y - r);
      } else {
        context.arc(x, y, r, 0, 7);
      }
      context.stroke();
    });
  });
  if (cursorShown) {
    const [x, y] = [cursor[0] * size, cursor[1] * size], r = 16 * unit;
    twice(() => {
      context.beginPath();
      context.moveTo(x - r, y); context.lineTo(x + r, y);
      context.moveTo(x, y - r); context.lineTo(x, y + r);
      context.stroke();
    });
  }
  // Ticks of both axes along the edges.
  context.font = `${12 * unit}px system-ui, sans-serif`;
  context.fillStyle = 'rgb(255 255 255 / .8)';
  const {x, y} = run.model.window, within = (at) => at > 0.05 * size && at < 0.95 * size;
  context.textAlign = 'center';
  for (const v of ticks(x[0], x[1], 5)) {
    const at = toCanvas([v, 0], size)[0];
    if (within(at)) context.fillText(short(v), at, size - 7 * unit);
  }
  context.textAlign = 'left';
  for (const v of ticks(y[0], y[1], 5)) {
    const at = toCanvas([0, v], size)[1];
    if (within(at)) context.fillText(short(v), 6 * unit, at + 4 * unit);
  }
}

function drawImages(context, width, height, at) {
  const k = Math.min(Math.floor(at), steps), f = k < steps ? ease(at - k) : 0;
  const each = picture.height / (steps + 1);
  context.imageSmoothingEnabled = false;
  const lay = (i, alpha) => {
    context.globalAlpha = alpha;
    context.drawImage(picture, 0, i * each, picture.width, each, 0, 0, width, height);
  };
  lay(k, 1);
  if (f > 0) lay(k + 1, f);
  context.globalAlpha = 1;
  // The white lines between images are left out: the page shows through.
  const [, tall, wide] = run.model.image, x = width / picture.width, y = height / each;
  for (let at = wide; at < picture.width; at += wide + 2) context.clearRect(Math.floor(at * x), 0, Math.ceil(2 * x), height);
  for (let at = tall; at < each; at += tall + 2) context.clearRect(0, Math.floor(at * y), width, Math.ceil(2 * y));
}

function draw() {
  const canvas = $('canvas'), context = canvas.getContext('2d');
  if (landscape) drawPlane(context, canvas.width, place, true);
  else if (picture) drawImages(context, canvas.width, canvas.height, place);
  $('step').value = Math.round(place);
  const left = steps - Math.round(place);
  const name = left === 0 ? 'samples' : left === steps ? 'noise' : '';
  $('step-name').textContent = `x${'₀₁₂₃₄₅₆₇₈₉'[left] ?? left} ${name}`;
  $('step').setAttribute('aria-valuetext', `x ${left} ${name}`);
}

// ---- the steps from noise to samples

const kMove = 900, kHold = 500, kRest = 2200;
function play() {
  playing = !playing;
  $('play').textContent = playing ? 'Pause' : 'Play';
  $('play').setAttribute('aria-pressed', playing);
  if (!playing) return;
  const begin = performance.now() - (place >= steps ? 0 : Math.floor(place) * (kMove + kHold));
  const frame = (now) => {
    if (!playing) return;
    // A frame may have begun before the click.
    const t = Math.max(0, now - begin) % (steps * (kMove + kHold) + kRest);
    const k = Math.min(Math.floor(t / (kMove + kHold)), steps);
    // Noise is seen for a moment before it moves.
    const f = Math.max(0, (t - k * (kMove + kHold) - kHold) / kMove);
    place = still ? k : Math.min(steps, k + (k < steps ? f : 0));
    draw();
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}
$('play').addEventListener('click', play);
$('step').addEventListener('input', () => {
  if (playing) play();
  place = Number($('step').value);
  draw();
});
$('again').addEventListener('click', async () => {
  ++seed;
  await sample().catch((e) => say(e.message));
  draw();
});
$('tone').addEventListener('change', () => { paint(); draw(); });

function paint() {
  landscape.maps = paintMaps(landscape.values, landscape.times, landscape.side, $('tone').value);
}

async function sample() {
  const n = run.model.kind === 'images' ? kPictures : kParticles;
  if (run.model.kind === 'images') {
    const answer = await post('/v1/sample', JSON.stringify({n, seed, path: true, format: 'png'}));
    picture = await createImageBitmap(await answer.blob());
    // Grids are square, or nearly so, one a step.
    const columns = Math.ceil(Math.sqrt(n)), [, height, width] = run.model.image;
    const tall = Math.ceil(n / columns) * (height + 2) - 2;
    steps = Math.round(picture.height / tall) - 1;
    const scale = Math.max(1, Math.floor(960 / picture.width));
    $('canvas').width = (columns * (width + 2) - 2) * scale;
    $('canvas').height = tall * scale;
  } else {
    const answer = await post('/v1/sample', JSON.stringify({n, seed, path: true}));
    const told = await answer.json();
    path = told.path;
    steps = path.length - 1;
  }
  $('step').max = steps;
  for (const id of ['play', 'step', 'step-name']) $(id).hidden = steps === 0;
}

// ---- what a checkpoint brings

async function loadModel() {
  const {kind} = run.model;
  const first = $('view').hidden;
  $('stage-title').textContent = kind === 'images' ? 'Samples, step by step'
    : kind === 'plane' ? 'The energy landscape' : 'Model';
  $('canvas').className = kind;
  if (kind === 'plane') {
    const {shape, values} = readNpy(await (await ask('/v1/landscape')).arrayBuffer());
    landscape = {times: shape[0], side: shape[1], values};
    paint();
  }
  if (kind !== 'rows') await sample();
  place = playing ? place : steps;
  $('waiting').hidden = true;
  $('view').hidden = kind === 'rows';
  $('stage').hidden = kind === 'rows';
  $('scoring').classList.toggle('wide', kind === 'rows');
  $('scoring').hidden = false;
  $('tone-box').hidden = kind !== 'plane';
  $('drop').hidden = kind !== 'images';
  $('typed').hidden = kind !== 'rows';
  if (kind === 'plane') {
    const canvas = $('canvas');
    canvas.width = canvas.height = 960;
    canvas.tabIndex = 0;
    canvas.setAttribute('role', 'application');
    canvas.setAttribute('aria-label', 'Map of the log-density. Arrow keys move the cursor, Enter scores the point.');
    $('stage-help').textContent = 'Noise becomes samples in ' + steps + ' steps; each has an energy of its own behind it.';
    $('scoring-help').textContent = 'Click the map; or focus it, move with the arrow keys, and press Enter.';
  } else if (kind === 'images') {
    $('canvas').setAttribute('role', 'img');
    $('canvas').setAttribute('aria-label', kPictures + ' generated images');
    $('stage-help').textContent = steps > 0 ? 'Noise becomes images in ' + steps + ' steps.' : '';
    $('scoring-help').textContent = 'How likely the model holds an image to be, beside its training images.';
  } else {
    $('scoring-help').textContent = 'How likely the model holds a row to be, beside its training rows.';
    $('rows-label').textContent = `Rows of ${run.model.event[0]} numbers, one a line`;
    $('rows').placeholder = Array(Math.min(run.model.event[0], 8)).fill('0.0').join(', ');
  }
  drawHistogram();
  draw();
  keepFrame();
  if (first && kind !== 'rows' && !still && !playing) play();
  document.body.dataset.ready = run.model.iteration;
}

// A small picture of this checkpoint's samples joins those before it.
function keepFrame() {
  if (run.model.kind === 'rows') return;
  const box = document.createElement('figure'), canvas = document.createElement('canvas');
  canvas.width = canvas.height = 224;
  const context = canvas.getContext('2d');
  if (landscape) drawPlane(context, 224, steps, false);
  else drawImages(context, 224, 224, steps);
  const caption = document.createElement('figcaption');
  caption.textContent = whole.format(run.model.iteration);
  box.append(canvas, caption);
  const film = $('film');
  film.append(box);
  while (film.children.length > kFilm) film.firstChild.remove();
  film.scrollLeft = film.scrollWidth;
  $('growth').hidden = film.children.length < 2;
}

// ---- scoring

// `what` names each of the data.
async function score(what, body, extra) {
  try {
    const {scores} = await (await post('/v1/score', body)).json();
    scores.forEach((s, i) => marks.unshift({...s, what: what[i], ...extra}));
    marks.splice(kKept).forEach((m) => m.url && URL.revokeObjectURL(m.url));
  } catch (e) {
    marks.unshift({what: what.length > 1 ? what.length + ' rows' : what[0], error: e.message});
  }
  listScores();
  drawHistogram();
  draw();
}

function listScores() {
  $('scores').replaceChildren(...marks.map((mark) => {
    const item = document.createElement('li'), add = (tag, name, text) => {
      const e = document.createElement(tag);
      e.className = name;
      e.textContent = text;
      item.append(e);
      return e;
    };
    if (mark.url) Object.assign(add('img', '', ''), {src: mark.url, alt: ''});
    else add('span', '', mark.answer === 'out' ? '✕' : mark.answer === 'in' ? '○' : '·');
    add('span', 'what', mark.what);
    if (mark.error) {
      add('span', 'answer out', 'refused');
      add('span', 'numbers', mark.error);
      return item;
    }
    add('span', 'answer ' + mark.answer, mark.answer ?? '');
    const e = mark.log_density === null ? 'not finite' : short(mark.log_density);
    const p = mark.p_value === null ? '' : ` · p-value ${short(mark.p_value)}`;
    add('span', 'numbers', `E ${e}${p}`);
    return item;
  }));
}

const canvas = $('canvas');
function scorePoint(share) {
  const point = fromShare(share);
  return score([`(${point.map((v) => v.toFixed(2)).join(', ')})`], JSON.stringify({rows: [point]}), {point});
}
canvas.addEventListener('click', (event) => {
  if (!landscape) return;
  const box = canvas.getBoundingClientRect();
  cursor = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  cursorShown = false;
  scorePoint(cursor);
});
canvas.addEventListener('keydown', (event) => {
  if (!landscape) return;
  const far = event.shiftKey ? 0.1 : 0.02;
  const moves = {ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, -far], ArrowDown: [0, far]};
  if (moves[event.key]) {
    cursor = cursor.map((v, i) => Math.min(1, Math.max(0, v + moves[event.key][i])));
    cursorShown = true;
    say(fromShare(cursor).map((v) => v.toFixed(2)).join(', '));
    draw();
  } else if (event.key === 'Enter' || event.key === ' ') {
    scorePoint(cursor);
  } else {
    return;
  }
  event.preventDefault();
});
canvas.addEventListener('blur', () => { cursorShown = false; draw(); });

function scoreFiles(files) {
  for (const file of files) score([file.name], file, {url: URL.createObjectURL(file)});
}
$('files').addEventListener('change', (event) => {
  scoreFiles([...event.target.files]);
  event.target.value = '';
});
for (const name of ['dragover', 'dragleave', 'drop']) {
  document.addEventListener(name, (event) => {
    if (!run?.model || run.model.kind !== 'images') return;
    event.preventDefault();
    $('drop').classList.toggle('over', name === 'dragover');
    if (name === 'drop') scoreFiles([...event.dataTransfer.files]);
  });
}
$('typed').addEventListener('submit', (event) => {
  event.preventDefault();
  const rows = $('rows').value.trim().split('\n').filter((line) => line.trim())
    .map((line) => line.trim().split(/[,;\s]+/).map(Number));
  if (rows.some((row) => row.some(Number.isNaN))) {
    marks.unshift({what: 'rows', error: 'not all of it are numbers'});
    listScores();
  } else {
    score(rows.map((row) => row.slice(0, 6).join(', ') + (row.length > 6 ? ', …' : '')), JSON.stringify({rows}), {});
  }
});

// ---- charts

const svg = (name, attributes, text) => {
  const e = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text !== undefined) e.textContent = text;
  return e;
};

function ticks(low, high, n) {
  const rough = (high - low) / n, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const all = [];
  for (let i = Math.ceil(low / step); i * step <= high; ++i) all.push(Number((i * step).toPrecision(12)));
  return all;
}

// Lines over iterations; the first values of a run do not flatten the rest.
function chart(lines) {
  const width = 280, height = 165, left = 40, bottom = 22, top = 8;
  const box = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img'});
  const values = lines.flatMap((l) => l.points.map((p) => p[1])).filter(Number.isFinite);
  const last = Math.max(...lines.map((l) => l.points.at(-1)[0]), 1);
  let low = quantile(values, 0.02), high = quantile(values, 0.98);
  if (!(high > low)) { low -= Math.abs(low) * 0.1 + 1e-3; high += Math.abs(high) * 0.1 + 1e-3; }
  const margin = 0.08 * (high - low);
  low -= margin;
  high += margin;
  const x = (v) => left + v / last * (width - left - 6);
  const y = (v) => height - bottom - (Math.min(Math.max(v, low), high) - low) / (high - low) * (height - bottom - top);
  for (const v of ticks(low, high, 5)) {
    box.append(svg('line', {class: 'grid', x1: left, x2: width - 6, y1: y(v), y2: y(v)}));
    box.append(svg('text', {x: left - 6, y: y(v) + 4, 'text-anchor': 'end'}, short(v)));
  }
  for (const v of ticks(0, last, 4)) {
    box.append(svg('text', {x: x(v), y: height - 6, 'text-anchor': 'middle'}, v >= 1000 ? v / 1000 + 'k' : v));
  }
  lines.forEach((line, i) => {
    const points = line.points.filter((p) => Number.isFinite(p[1])).map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`);
    if (points.length === 1) {
      const [cx, cy] = points[0].split(',');
      box.append(svg('circle', {class: 'bar', cx, cy, r: 3}));
    }
    box.append(svg('polyline', {class: i ? 'line second' : 'line', points: points.join(' ')}));
  });
  box.setAttribute('aria-label', lines.map((l) => `${l.name}: now ${short(l.points.at(-1)[1] ?? NaN)}`).join('; '));
  return box;
}

// First what tells whether a run goes well; two that belong together share a chart.
const kFirst = [['kl', 'js'], ['fid'], ['fid768'], ['held_out_score', 'sample_score'],
  ['energy_real', 'energy_fake'], ['energy'], ['generator']];
const kNever = ['seconds', 'images', 'lr'];

function drawCurves(series) {
  const make = (names) => {
    const lines = names.filter((n) => series[n]?.length).map((name) => ({name, points: series[name]}));
    if (!lines.length) return null;
    const box = document.createElement('div'), head = document.createElement('h3');
    if (lines.every((l) => l.points.length === 1)) {  // of a run that was evaluated once
      head.textContent = `Iteration ${whole.format(lines[0].points[0][0])}`;
      box.append(head, ...lines.map((line) => {
        const number = document.createElement('div'), name = document.createElement('span');
        number.className = 'number';
        name.textContent = line.name.replaceAll('_', ' ');
        number.append(short(line.points[0][1] ?? NaN), name);
        return number;
      }));
      return box;
    }
    lines.forEach((line, i) => {
      const name = document.createElement('div'), now = document.createElement('span');
      now.className = lines.length > 1 ? 'ab'[i] : '';
      now.textContent = short(line.points.at(-1)[1] ?? NaN);
      name.append(line.name.replaceAll('_', ' ') + ' ', now);
      head.append(name);
    });
    box.append(head, chart(lines));
    return box;
  };
  const first = kFirst.filter((names) => names.some((n) => series[n]));
  const used = new Set([...first.flat(), ...kNever]);
  $('charts').replaceChildren(...first.map(make).filter(Boolean));
  const rest = Object.keys(series).filter((n) => !used.has(n)).map((n) => make([n])).filter(Boolean);
  $('more').replaceChildren(...rest);
  $('more-box').hidden = rest.length === 0;
  $('curves').hidden = first.length === 0 && rest.length === 0;
}

function drawHistogram() {
  const told = run.model.training_scores, {threshold} = run.model;
  const box = $('histogram');
  if (!told) {
    box.replaceChildren();
    $('histogram-note').textContent = 'No training scores: there are no p-values.';
    return;
  }
  const width = 420, height = run.model.kind === 'plane' ? 250 : 170, bottom = 24, top = 14;
  const chartBox = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `Histogram of ${told.count} training scores between ${short(told.low)} and ${short(told.high)}`});
  const scored = marks.filter((m) => Number.isFinite(m.log_density)).slice(0, 12);
  // What was scored is shown too, but what is far out may not squeeze the histogram.
  const span = told.high - told.low || 1;
  const line = threshold.profile === null ? threshold.log_density : null;
  const cut = line ?? told.low;
  const low = Math.max(told.low - 1.2 * span, Math.min(told.low - 0.05 * span, cut - 0.05 * span, ...scored.map((m) => m.log_density)));
  const high = Math.min(told.high + 1.2 * span, Math.max(told.high + 0.05 * span, ...scored.map((m) => m.log_density)));
  const x = (v) => 8 + (Math.min(Math.max(v, low), high) - low) / (high - low) * (width - 16);
  const most = Math.max(...told.bins), each = span / told.bins.length;
  told.bins.forEach((count, i) => {
    const h = count / most * (height - bottom - top), from = x(told.low + i * each);
    chartBox.append(svg('rect', {class: 'bar', x: from, y: height - bottom - h,
      width: Math.max(0.5, x(told.low + (i + 1) * each) - from - 0.6), height: h}));
  });
  chartBox.append(svg('line', {class: 'grid', x1: 8, x2: width - 8, y1: height - bottom, y2: height - bottom}));
  for (const v of ticks(low, high, 5)) {
    chartBox.append(svg('text', {x: x(v), y: height - 7, 'text-anchor': 'middle'}, short(v)));
  }
  if (line !== null) {
    const at = x(line);
    chartBox.append(svg('line', {class: 'cut', x1: at, x2: at, y1: top - 4, y2: height - bottom}));
    chartBox.append(svg('text', {x: at - 4, y: top + 4, 'text-anchor': 'end'}, 'out'));
    chartBox.append(svg('text', {x: at + 4, y: top + 4}, 'in'));
  }
  scored.forEach((mark, i) => {
    const at = x(mark.log_density);
    chartBox.append(svg('line', {class: 'mark', x1: at, x2: at, y1: height - bottom - (i ? 14 : 40), y2: height - bottom}));
    chartBox.append(svg('circle', {class: 'mark', cx: at, cy: height - bottom - (i ? 14 : 40), r: i ? 1.5 : 3}));
  });
  box.replaceChildren(chartBox);
  const rate = `${short(100 * threshold.false_alarm)} % of false alarms, from ${threshold.source}`;
  $('histogram-note').textContent = `E of ${whole.format(told.count)} training data. ` + (threshold.profile === null ?
    `Below the dashed line (${rate}) the answer is out.` :
    `The answer goes by the profile of a datum, not by E alone (${rate}).`);
}

// ---- what goes on

let curvesOf = -1, modelOf = -1, looking = false;
async function look() {
  if (looking) return;
  looking = true;
  try {
    run = await (await ask('/v1/model')).json();
    document.title = `${run.name} · ddaebm`;
    $('name').textContent = run.name;
    $('about').textContent = `${run.method} on ${run.data}` +
      (run.model ? ` · checkpoint ${whole.format(run.model.iteration)}` : '');
    $('state').textContent = run.state;
    $('state').dataset.state = run.state;
    $('progress').value = run.done / run.iterations;
    $('done').textContent = `${whole.format(run.done)} of ${whole.format(run.iterations)}`;
    $('version').textContent = `ddaebm ${run.version}`;
    if (run.done !== curvesOf) {
      const {series} = await (await ask('/v1/curves')).json();
      drawCurves(series);
      curvesOf = run.done;
    }
    if (run.model && run.model.iteration !== modelOf) {
      await loadModel();
      modelOf = run.model.iteration;
    }
  } catch (e) {
    $('state').textContent = e instanceof TypeError ? 'server not reached' : e.message;
    $('state').dataset.state = 'lost';
  }
  looking = false;
}
setInterval(() => { if (!document.hidden) look(); }, kPoll);
document.addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
look();

// ---- light and dark

const kThemes = ['auto', 'light', 'dark'];
function setTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $('theme').textContent = 'Theme: ' + theme;
  localStorage.setItem('theme', theme);
}
$('theme').addEventListener('click', () => {
  const now = document.documentElement.dataset.theme || 'auto';
  setTheme(kThemes[(kThemes.indexOf(now) + 1) % kThemes.length]);
});
setTheme(localStorage.getItem('theme') || 'auto');
